"""A rank that takes training steps on commands of ``benchmarks.training``, with one variant at a time.

Variants: ``none``, without communication; ``ours``, with ``hvd.DistributedOptimizer``; ``ddp``, PyTorch's
``DistributedDataParallel`` over gloo; ``group``, the same over this package's process group; and the first three in
Lightning's Trainer (``training_lightning``), with the prefix ``lightning_``. A step is a forward pass, a backward pass,
the gradient exchange and an SGD step; in a Trainer it lasts from one batch to the request for the next.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spark_estimator.torch as hvd
from benchmarks.protocol import answer_commands
from benchmarks.training_steps import (
    CHECKED_STEPS,
    MANY,
    TOLERANCE,
    UNCOUNTED,
    Answers,
    resnet50_shapes,
    timed,
)
from spark_estimator.launch.worker.worker import bind_to_parent
from spark_estimator.torch import process_group


class GradientShapes(nn.Module):
    """Parameters of these shapes with almost no computation: what counts is the exchange of their gradients."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.full(shape, 0.01)) for shape in shapes])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [batch, any]. Returns a scalar."""
        total = inputs.mean()
        return total * torch.stack([parameter.sum() for parameter in self.all]).sum()


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(100):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


class FineTuning(nn.Module):
    """A causal language model of transformers, whose output is the loss of its texts.

    Args:
        lora: train an adapter of peft's, not the model itself.
    """

    def __init__(self, *, lora: bool = False) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=128,
            use_cache=False,
        )
        self.net: Any = LlamaForCausalLM(config)
        if lora:
            from peft import LoraConfig, get_peft_model

            adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
            self.net = get_peft_model(self.net, adapter)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """texts: [batch, tokens]. Returns a scalar."""
        loss: torch.Tensor = self.net(input_ids=texts, labels=texts).loss
        return loss


def squared(output: torch.Tensor) -> torch.Tensor:
    """The loss of models without their own: the mean of the squared outputs."""
    return output.square().mean()


@dataclass(frozen=True)
class Model:
    """A model to train.

    Attributes:
        make: creates the model; its parameters depend only on torch's random seed.
        inputs: shape of a batch.
        learning_rate: small enough that the checked steps don't overflow float32.
        loss: of the model's output.
        tokens: the batch has numbers of words, below `VOCABULARY`; False: normally distributed numbers.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    learning_rate: float
    loss: Callable[[torch.Tensor], torch.Tensor] = squared
    tokens: bool = False


VOCABULARY = 2048
_TEXTS: dict[str, Any] = {"inputs": (2, 128), "learning_rate": 1e-2, "loss": torch.Tensor.mean, "tokens": True}
MODELS = {
    "mlp": Model(_mlp, (32, 64), 1e-2),
    "resnet50": Model(functools.partial(GradientShapes, resnet50_shapes()), (1, 1), 1e-6),
    "many": Model(functools.partial(GradientShapes, [(64,)] * MANY), (1, 1), 1e-6),
    "transformer": Model(_transformer, (4, 64, 256), 1e-3),
    "llama": Model(FineTuning, **_TEXTS),
    "lora": Model(functools.partial(FineTuning, lora=True), **_TEXTS),
}


class Training:
    """A model trained with one variant, ready to take steps."""

    def __init__(self, variant: str, name: str) -> None:
        self.description = MODELS[name]
        torch.manual_seed(0)
        self.model = self.description.make()
        trained = [(key, value) for key, value in self.model.named_parameters() if value.requires_grad]
        optimizer = torch.optim.SGD([value for _, value in trained], lr=self.description.learning_rate)
        self._forward = self.model
        if variant == "ours":
            optimizer = hvd.DistributedOptimizer(optimizer, trained)
        elif variant in ("ddp", "group"):
            if variant == "group" and not dist.is_initialized():
                dist.init_process_group(process_group.BACKEND_NAME)
            self._forward = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self._optimizer = optimizer
        self._inputs = inputs_of(name, hvd.rank(), 0)

    def step(self, inputs: torch.Tensor | None = None) -> None:
        """Takes one training step on `inputs`; default: the same inputs at each call."""
        self._optimizer.zero_grad()
        self.description.loss(self._forward(self._inputs if inputs is None else inputs)).backward()
        self._optimizer.step()


def inputs_of(name: str, rank: int, step: int) -> torch.Tensor:
    """The batch of a rank for a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if MODELS[name].tokens:
        return torch.randint(VOCABULARY, MODELS[name].inputs, generator=generator)
    return torch.randn(MODELS[name].inputs, generator=generator)


def _reference(name: str) -> nn.Module:
    """The model after the checked steps on the batches of all ranks, computed in this process."""
    torch.manual_seed(0)
    model = MODELS[name].make()
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=MODELS[name].learning_rate)
    for step in range(CHECKED_STEPS):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            (MODELS[name].loss(model(inputs_of(name, rank, step))) / hvd.size()).backward()
        optimizer.step()
    return model


def _make(variant: str, name: str) -> Any:
    """Creates a `Training` or a ``LightningTraining``."""
    if not variant.startswith("lightning_"):
        return Training(variant, name)
    from benchmarks.training_lightning import LightningTraining  # it takes seconds to import

    return LightningTraining(variant, name)


def _check(variant: str, name: str) -> str:
    if variant.endswith("none"):
        return "ok"
    training = _make(variant, name)
    batches = [inputs_of(name, hvd.rank(), step) for step in range(CHECKED_STEPS)]
    if isinstance(training, Training):
        for batch in batches:
            training.step(batch)
    else:
        training.steps(batches, timed=False)
    for number, (actual, correct) in enumerate(
        zip(training.model.parameters(), _reference(name).parameters(), strict=True)
    ):
        if not torch.allclose(actual, correct, rtol=TOLERANCE, atol=TOLERANCE * float(correct.abs().max())):
            return f"wrong values on rank {hvd.rank()}, parameter {number} of {name}"
    return "ok"


def _block(training: Any, name: str, samples: int) -> list[float]:
    """The nanoseconds of each step."""
    if isinstance(training, Training):
        return timed(training.step, samples, hvd.barrier)
    steps: list[float] = training.steps([inputs_of(name, hvd.rank(), 0)] * (UNCOUNTED + samples))
    return steps[UNCOUNTED:]


def _in_hooks(training: Training) -> str:
    """The nanoseconds per parameter that backward spends in hooks, which record gradients and submit buckets."""
    figures = []
    for _ in range(20):
        with _timed_hooks(training.model) as spent:
            training.step()
        figures.append(spent[0] / max(1, spent[1]))
    return f"hooks {sorted(figures)[len(figures) // 2]:.0f}"


@contextlib.contextmanager
def _timed_hooks(model: nn.Module) -> Iterator[list[int]]:
    """Sums the nanoseconds in the hooks of parameters, without those of the clock, and counts the calls."""
    spent = [0, 0]
    clock = time.perf_counter_ns
    begin = clock()
    for _ in range(1000):
        clock()
    reading = (clock() - begin) // 1000

    def timed_hook(hook: Any) -> Any:
        def run(param: torch.Tensor) -> None:
            start = clock()
            hook(param)
            spent[0] += clock() - start - reading
            spent[1] += 1

        return run

    hooks = [value._post_accumulate_grad_hooks for value in model.parameters() if value.requires_grad]
    originals = [dict(registered) for registered in hooks]
    for registered in hooks:
        registered.update({number: timed_hook(hook) for number, hook in registered.items()})
    try:
        yield spent
    finally:
        for registered, original in zip(hooks, originals, strict=True):
            registered.update(original)


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path, help="the socket on which the controller listens")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--gloo", help="tcp://host:port of gloo's rendezvous")
    options = parser.parse_args()
    bind_to_parent(options.parent)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    hvd.init()
    if options.gloo:
        dist.init_process_group("gloo", init_method=options.gloo, rank=hvd.rank(), world_size=hvd.size())
    answers = Answers(_make, _check, _block, {"hooks": _in_hooks})
    answer_commands(options.socket, hvd.rank(), hvd.size(), answers.answer)
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # its peers may have exited
            dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
