"""Fine-tunes a transformers model on each rank: loads it there, and trains it with the loop of `TorchEstimator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import launcher_link
from spark_estimator.estimators.torch import training
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.rank_state import seed_start
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.extensions.transformers.module import TextModule, make_net
from spark_estimator.extensions.transformers.pretrained import Pretrained, silence_warnings
from spark_estimator.extensions.transformers.task import TextTask

# Trainer.get_decay_parameter_names of transformers has them.
_NOT_DECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


def _describe_no_targets(task: TextTask) -> str:
    if task.task == "token_classification":
        return f"no word of column {task.text!r} has a class in column {task.label!r}."
    if task.chat and task.loss_on == "assistant":
        return (
            f"no chat of column {task.text!r} has a message of the assistant within max_length={task.max_length} "
            "tokens. loss_on='all' learns all messages."
        )
    return f"each text of column {task.text!r} is empty, or has a single token."


@dataclass(frozen=True)
class TextParts:
    """What `TrainSpec.framework` is for a model of transformers: not the model, but what it is made of.

    Attributes:
        source: the pretrained model.
        lora: arguments of the adapter; None: all numbers are trained.
        tokenizer: of the model.
        rate, decay: of AdamW.
        optimizer: makes another optimizer of parameters; None: AdamW.
        digest: of the pretrained model, which a run that resumes must have, too; empty: any is right.
        compression, precision, callbacks, recipe: as `TorchParts` has them.
    """

    source: Pretrained
    task: TextTask
    lora: Mapping[str, Any] | None
    tokenizer: Any
    rate: float
    decay: float
    recipe: StepRecipe
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    digest: str = ""
    compression: Any = None
    precision: str | None = None
    callbacks: Sequence[Any] = ()

    def make_module(self) -> TextModule:
        """Return a new model."""
        return TextModule(make_net(self.source, self.task, self.lora, self.tokenizer), self.task)

    def make_parts(self) -> TorchParts:
        """Return what `TorchEstimator` trains with.

        Raises:
            TypeError: a function did not return an optimizer.
        """
        module = self.make_module()
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        optimizer = self.optimizer(list(trained.values())) if self.optimizer else self._make_adam(module, trained)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(
                f"optimizer must be a function that returns a torch.optim optimizer; it returned {optimizer!r}."
            )
        return TorchParts(
            model=module,
            optimizer=optimizer,
            losses=[nn.CrossEntropyLoss()],
            loss_weights=[1.0],
            metrics=[[accuracy] if self.task.task == "classification" else []],
            compression=self.compression,
            precision=self.precision,
            callbacks=self.callbacks,
            recipe=self.recipe,
            labels=["labels"],
            rate_is_joint=True,
            settings=(
                f"lora={sorted((self.lora or {}).items())}",
                *([f"pretrained model with the digest {self.digest}"] if self.digest else []),
            ),
            # Padding, if nothing else; so that the trial on the first rows knows it, too.
            leaving_out=frozenset() if self.task.task == "classification" else frozenset([0]),
            nothing_to_learn=_describe_no_targets(self.task),
            returns_optimizer=False,  # of the whole training module, which the result does not have
        )

    def _make_adam(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer that the Trainer makes: biases and normalizations do not decay."""
        from transformers.trainer_pt_utils import get_parameter_names

        decayed = set(get_parameter_names(module, [nn.LayerNorm], _NOT_DECAYED))
        groups = [
            {"params": [trained[name] for name in trained if (name in decayed) == decays], "weight_decay": decay}
            for decays, decay in ((True, self.decay), (False, 0.0))
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=self.rate)


def accuracy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Return the share of rows whose class has the highest score."""
    return (output.argmax(1) == label.reshape(-1)).float().mean()


def train(spec: TrainSpec) -> TrainResult | None:
    """Train on every rank. Return the result on rank 0; None on the others."""
    import transformers

    hvd.init()
    transformers.utils.logging.disable_progress_bar()  # each rank's lines are sent to the driver
    if not spec.verbose:
        transformers.utils.logging.set_verbosity_error()
    seed_start(spec.seed)  # for the numbers that the pretrained model does not have
    parts: TextParts = spec.framework
    # A rank that replaces a lost one comes when the others are in their training.
    may_join = launcher_link.link() is not None
    parts = replace(parts, source=parts.source.find_here() if may_join else parts.source.find_on_hosts())
    with silence_warnings():  # the driver has warned of what is new
        framework = parts.make_parts()
    return training.train(replace(spec, framework=framework))
