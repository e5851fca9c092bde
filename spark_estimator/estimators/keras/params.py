"""The parameters of `KerasEstimator` and `KerasModel`."""

from __future__ import annotations

from dataclasses import replace

from spark_estimator.estimators import checks, params
from spark_estimator.estimators.keras.history import KerasHistory, to_history
from spark_estimator.estimators.keras.spec import DEFAULT_ENVIRONMENT
from spark_estimator.estimators.params import Row

#: What differs from the shared parameters.
_DOCS = {
    "model": "a keras.Model, compiled or not; required",
    "optimizer": "a Keras optimizer or its name; None: the one the model was compiled with",
    "loss": "a Keras loss, its name or a function of (label, output), or a list with one per output; None: those the "
    "model was compiled with",
    "loss_weights": "a weight per loss; None: those the model was compiled with, or 1 for each",
    "metrics": "metrics, as model.compile takes them; empty: those the model was compiled with; Keras' objects count "
    "all rows, and the values that functions return for batches are averaged",
}

ESTIMATOR = (
    *(replace(row, doc=_DOCS[row.name]) if row.name in _DOCS else row for row in params.SHARED),
    *params.PREDICTING,
    params.LEARNING_RATE,
    Row(
        "callbacks",
        [],
        checks.check_list,
        "Keras callbacks, called on every rank with global losses",
        "Any",
        "list[Any]",
    ),
    Row(
        "checkpoint_callback",
        None,
        checks.accept,
        "a ModelCheckpoint, such as BestModelCheckpoint, called on rank 0: the model it saved last is returned; None: "
        "the model of the last epoch is",
    ),
    Row(
        "custom_objects",
        {},
        checks.check_dict,
        "your classes and functions by name, for Keras to load the model with",
        "Mapping[str, Any] | None",
        "dict[str, Any]",
    ),
    Row(
        "backend_env",
        dict(DEFAULT_ENVIRONMENT),
        checks.check_dict,
        "environment variables to set in the processes before they import Keras; the default, Horovod's, is set where "
        "the processes do not have the variable",
        "Mapping[str, Any] | None",
        "dict[str, Any]",
    ),
    params.DATA_MODULE,
)

MODEL = (
    Row(
        "history",
        KerasHistory(),
        to_history,
        "a dict from each metric's name to its values, one per epoch",
        "Mapping[str, Any] | Sequence[Mapping[str, Any]] | Sequence[float] | None",
        "KerasHistory",
    ),
    *params.MODEL,
    Row(
        "custom_objects",
        {},
        checks.check_dict,
        "your classes and functions by name, for Keras to load the model with",
        "Mapping[str, Any] | None",
        "dict[str, Any]",
        saved=False,
    ),
    Row("_floatx", None, checks.check_str, "Keras' floating-point type in the training; not used", "str | None"),
)

#: As `params.WITHOUT_EFFECT`.
WITHOUT_EFFECT = {"tensorflow_dataset_prefetch_buffer_size": "a thread prepares the next batches anyway"}
