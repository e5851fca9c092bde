"""The parameters of `TransformersEstimator` and `TransformersModel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_estimator.estimators import checks, params
from spark_estimator.estimators.params import Row
from spark_estimator.estimators.torch import params as torch_params

TASKS = ("causal", "classification", "token_classification")
_SHARED = {row.name: row for row in params.SHARED}
#: Those of transformers' Trainer.
_DEFAULTS: Mapping[str, Any] = {"lr_scheduler": "linear", "gradient_clip_norm": 1.0}
_OF_TORCH = {row.name: row for row in torch_params.ESTIMATOR}


def check_task(name: str, value: Any) -> str | None:
    """Return one of the tasks, or None."""
    return None if value is None else checks.check_one_of(*TASKS)(name, value)


def check_lora(name: str, value: Any) -> dict[str, Any] | None:
    """Return the arguments of peft's LoraConfig, none of which depends on the model yet; or None."""
    if hasattr(value, "to_dict") and hasattr(value, "lora_alpha"):
        default = type(value)().to_dict()
        value = {key: entry for key, entry in value.to_dict().items() if entry != default.get(key)}
        value = {key: sorted(entry) if isinstance(entry, set) else entry for key, entry in value.items()}
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must be a dict of the arguments of peft.LoraConfig, such as {{'r': 8}}; got {value!r}."
        )
    return None if value is None else checks.check_dict(name, dict(value))


_TASK = Row(
    "task",
    None,
    check_task,
    "'causal': generate text; 'classification': a class for each text; 'token_classification': a class for each word; "
    "None: the label column decides: without one, of texts or numbers, of arrays",
    "str | None",
)
_TOKENIZER = Row(
    "tokenizer", None, checks.accept, "a fast tokenizer of transformers, or its folder; None: the model's folder has it"
)
_MAX_LENGTH = Row(
    "max_length",
    None,
    checks.check_int(2),
    "the number of tokens of a row of the training; longer texts are cut, or are several rows of a causal model; None: "
    "256, or the most that the model takes",
    "int | None",
)
_GENERATING = (
    Row("max_new_tokens", 64, checks.check_int(1), "the number of tokens that transform generates at most", "int"),
    Row(
        "generation",
        {},
        checks.check_dict,
        "other arguments of the model's generate(), such as {'do_sample': True}",
        "Mapping[str, Any] | None",
        "dict[str, Any]",
    ),
)

ESTIMATOR = (
    *(_SHARED[name] for name in ("num_proc", "backend", "store")),
    Row(
        "model",
        None,
        checks.accept,
        "a folder with a pretrained model, its name on the Hugging Face Hub, or a model of transformers; required",
    ),
    _TOKENIZER,
    _TASK,
    Row(
        "text_col",
        "text",
        checks.check_str,
        "the column with texts; for token classification with arrays of words; for a chat with arrays of messages, "
        "structs of role and content",
        "str",
    ),
    Row(
        "label_col",
        None,
        checks.check_str,
        "the column with classes: texts, integers or booleans, or arrays",
        "str | None",
    ),
    Row(
        "labels",
        None,
        checks.check_list,
        "all classes, in the order of the model's outputs; None: those of the label column, sorted, by a Spark job",
        "Sequence[Any] | None",
        "list[Any] | None",
    ),
    _MAX_LENGTH,
    Row(
        "packing",
        True,
        checks.check_bool,
        "whether a row of a causal model's training holds several texts, which do not see each other",
        "bool",
    ),
    Row(
        "loss_on",
        "assistant",
        checks.check_one_of("assistant", "all"),
        "of a chat: 'assistant': learn the assistant's messages; 'all': every message",
        "str",
    ),
    Row(
        "lora",
        None,
        check_lora,
        "arguments of peft.LoraConfig, such as {'r': 8}, or a LoraConfig: train an adapter; None: the whole model",
        "Mapping[str, Any] | Any | None",
        "dict[str, Any] | None",
    ),
    Row(
        "learning_rate",
        5e-5,
        checks.check_positive,
        "of a step of all processes; not multiplied by their number",
        "float",
    ),
    Row(
        "weight_decay",
        0.0,
        checks.check_not_negative,
        "of AdamW, for all parameters but biases and those of normalizations, as with the Trainer",
        "float",
    ),
    Row(
        "optimizer",
        None,
        checks.check_function,
        "a function from a list of parameters to a torch.optim optimizer, instead of AdamW",
        "Callable[[Any], torch.optim.Optimizer] | None",
    ),
    *(replace(row, default=_DEFAULTS[row.name]) if row.name in _DEFAULTS else row for row in torch_params.RECIPE),
    _OF_TORCH["mixed_precision"],
    _OF_TORCH["callbacks"],
    _OF_TORCH["profile"],
    *(
        _SHARED[name]
        for name in (
            *("validation", "batch_size", "val_batch_size", "epochs", "train_steps_per_epoch"),
            *(
                "validation_steps_per_epoch",
                "verbose",
                "gradient_compression",
                "max_restarts",
                "random_seed",
                "shuffle",
            ),
            *("run_id", "resume_on_other_rows", "checkpoint_every_steps", "checkpoint_every_seconds"),
            *("early_stopping_patience", "restore_best", "monitor", "mode", "use_gpu"),
            *("backward_passes_per_step", "mlflow", "materialize"),
        )
    ),
    Row(
        "nulls", "error", checks.check_one_of("error", "drop"), "how to handle nulls: 'error', or 'drop' the row", "str"
    ),
    *_GENERATING,
    *params.PREDICTING,
    *params.INFERENCE,
)

#: What the shared parameters that it does not have are to the code that all estimators share.
WITHOUT: Mapping[str, Any] = {
    "buffer_bytes": None,
    "cache_bytes": None,
    "categories": None,
    "channels_last": False,
    "decoders": None,
    "feature_cols": None,
    "input_shapes": None,
    "label_cols": ["labels"],
    "label_shapes": None,
    "padding": None,
    "read_files": False,
    "sample_weight_col": None,
    "transform_validation": True,
    "transformation_edit_fields": None,
    "transformation_fn": None,
    "transformation_removed_fields": None,
}

_MODEL = {row.name: row for row in params.MODEL}
MODEL = (
    params.HISTORY,
    Row("model", None, checks.accept, "the trained model of transformers, or of peft", saved=False),
    Row("tokenizer", None, checks.accept, "the tokenizer that it was trained with", saved=False),
    _TASK,
    *(_MODEL[name] for name in ("feature_columns", "label_columns", "run_id", "training_params")),
    Row(
        "labels", None, checks.check_list, "the classes, in the order of the model's outputs", "Any", "list[Any] | None"
    ),
    Row("label_type", "string", checks.check_str, "the Spark type of a class", "str"),
    Row("batch_size", 32, checks.check_int(1), "rows per call of the model", "int"),
    _MAX_LENGTH,
    *_GENERATING,
    *params.PREDICTING,
    *params.INFERENCE,
)
