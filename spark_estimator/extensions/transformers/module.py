"""A model of transformers as the training of `TorchEstimator` knows models: tensors in, one tensor of scores out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.extensions.transformers.adapter import add_adapter
from spark_estimator.extensions.transformers.pretrained import Pretrained, choose_length
from spark_estimator.extensions.transformers.special_tokens import get_max_tokens, settle_end, settle_padding
from spark_estimator.extensions.transformers.task import TextTask
from spark_estimator.extensions.transformers.tokens import PADDING

#: What loads a model for a task, and where transformers has the names of the classes that it makes.
KINDS = {
    "causal": "AutoModelForCausalLM",
    "classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
}
_CLASSES = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
}


class TextModule(nn.Module):
    """Calls the model with token numbers as `tokens` makes them.

    Its state is what is trained: with an adapter, no number of the pretrained model.

    Args:
        net: of transformers, or of peft.
    """

    def __init__(self, net: nn.Module, task: TextTask) -> None:
        super().__init__()
        self.net = net
        self._causal = task.task == "causal"
        self._by_token = task.task != "classification"
        self._partly = any(not parameter.requires_grad for parameter in net.parameters())
        self._filling = int(getattr(net.config, "pad_token_id", None) or 0)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return [rows, classes], or [rows, classes, length] where each token has scores.

        Args:
            input_ids: [rows, length] with `PADDING` at the end.
            position_ids: [rows, length] places of tokens in their texts, where a row holds several.
        """
        seen = input_ids != PADDING
        length = input_ids.shape[1]
        used = max(1, int(seen.any(0).sum()))
        ids = input_ids.masked_fill(~seen, self._filling)[:, :used]
        # Without an attention mask, the model keeps the texts of a row apart by their places.
        more: dict[str, Any] = (
            {"attention_mask": seen[:, :used].long()}
            if position_ids is None
            else {"position_ids": position_ids[:, :used]}
        )
        if self._causal:
            more["use_cache"] = False
        scores: torch.Tensor = self.net(input_ids=ids, **more).logits.float()
        if not self._by_token:
            return scores
        return nn.functional.pad(scores.transpose(1, 2), (0, length - used))

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """Return the numbers that are trained, and buffers."""
        state = super().state_dict(*args, **options)
        if self._partly and not args and not options:
            trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
            return {name: state[name] for name in state if name in trained}
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what `state_dict` has returned.

        Raises:
            RuntimeError: a number is missing, or is of no use.
        """
        if self._partly:
            expected = self.state_dict().keys()
            if expected != state_dict.keys():
                raise RuntimeError(f"other numbers are trained: {sorted(expected ^ state_dict.keys())[:3]}.")
        return super().load_state_dict(state_dict, strict=strict and not self._partly, assign=assign)


def check_causal(module: TextModule) -> None:
    """Check that the scores of a token do not depend on later tokens, which the model is to predict.

    Raises:
        DataError: they do.
    """
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            first, second = (module(torch.tensor([[1, 2, 3, last]]))[..., :3] for last in (4, 5))
    finally:
        module.train(training)
    if not torch.allclose(first, second, rtol=0, atol=1e-4 * max(1e-6, float(first.abs().max()))):
        raise DataError(
            f"{type(module.net).__name__} sees the tokens that it should predict: its scores of a token depend on "
            "later tokens. task='causal' needs a decoder; for BERT and its relatives, set is_decoder=True in the "
            "model's config."
        )


def check_packing(module: TextModule) -> None:
    """Check that a model keeps the texts of a row apart: its scores of a text are those of the text alone.

    Raises:
        DataError: it does not.
    """
    first, second = [1, 2, 3], [4, 5, 6, 7]
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            joined = module(torch.tensor([first + second]), torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))[..., len(first) :]
            alone = module(torch.tensor([second]), torch.tensor([[0, 1, 2, 3]]))
    except (TypeError, ValueError) as error:  # it takes no places
        raise _sees_across(module, str(error)) from error
    finally:
        module.train(training)
    if not torch.allclose(joined, alone, rtol=0, atol=1e-4 * max(1e-6, float(alone.abs().max()))):
        raise _sees_across(module, "the scores of a text depend on the text before it")


def _sees_across(module: TextModule, reason: str) -> DataError:
    return DataError(
        f"{type(module.net).__name__} does not keep the texts of a packed row apart ({reason}): set packing=False."
    )


def make_net(source: Pretrained, task: TextTask, lora: Mapping[str, Any] | None, tokenizer: Any) -> nn.Module:
    """Return the model to train: with a new head for the classes, and an adapter, where those are asked for.

    Numbers that are new are random: all ranks take rank 0's.

    Raises:
        DataError: the model is of another kind, has other classes, or takes fewer tokens; or an adapter cannot
            contain a new parameter.
        ValueError: peft does not take the arguments.
    """
    classes = {str(number): str(label) for number, label in enumerate(task.labels)}
    options: dict[str, Any] = {"dtype": torch.float32}
    if classes:
        options |= {
            "num_labels": len(classes),
            "id2label": {int(number): label for number, label in classes.items()},
            "label2id": {label: int(number) for number, label in classes.items()},
        }
    net, missing = source.read(KINDS[task.task], **options)
    config = net.config
    if source.net is not None:
        if not _is_for(net, task.task):
            raise DataError(
                f"model is a {type(net).__name__}; task={task.task!r} needs a model like {KINDS[task.task]} makes them."
            )
        if classes and config.num_labels != len(classes):
            raise DataError(
                f"the model has {config.num_labels} classes, and the column {task.label!r} {len(classes)}: "
                f"{list(task.labels)!r:.200}. Make the model with num_labels={len(classes)}."
            )
        if classes:
            config.id2label, config.label2id = options["id2label"], options["label2id"]
    settle_padding(net, tokenizer)
    if task.task == "causal":
        settle_end(net, tokenizer)
    choose_length(task.max_length, get_max_tokens(net), tokenizer)
    vocabulary_size = config.get_text_config().vocab_size
    if len(tokenizer) > vocabulary_size:
        raise DataError(
            f"the tokenizer has {len(tokenizer)} tokens and the model {vocabulary_size}: they do not belong together. "
            "Call model.resize_token_embeddings(len(tokenizer)) for new tokens."
        )
    return net if lora is None else add_adapter(net, task.task, lora, source, missing)


def _is_for(net: nn.Module, task: str) -> bool:
    """Return whether a model's class, or a base class, is one for a task."""
    from transformers.models.auto import modeling_auto

    names = set(getattr(modeling_auto, _CLASSES[task]).values())
    return any(kind.__name__ in names for kind in type(net).__mro__)
