"""Checks those parameters of a `KerasEstimator` that are Keras', and packs what the ranks train with."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from spark_estimator.estimators.averaged_metrics import warn_of_averages
from spark_estimator.estimators.checks import check_labels, describe_value
from spark_estimator.estimators.inference.prediction_columns import OutputKind, find_computing_class
from spark_estimator.estimators.keras.compiled import get_arguments
from spark_estimator.estimators.keras.objects import Recipe, dump_model, find_custom_objects, get_values, pack
from spark_estimator.estimators.keras.spec import KerasParts
from spark_estimator.estimators.persistence.run_identity import Identity, get_name
from spark_estimator.keras.importing import backend, imported, is_keras_2, keras_of
from spark_estimator.keras.optimizers import find_innermost, is_built, is_optimizer, list_variables
from spark_estimator.keras.optimizers import find_name as optimizer_name
from spark_estimator.keras.variables import describe_variables
from spark_estimator.keras.wrapping import find_exchange

_OF_KERAS = ("keras", "tf_keras")


def make_parts(value: Callable[[str], Any]) -> tuple[KerasParts, list[str], list[OutputKind], dict[str, Any]]:
    """Return the parts for the ranks, the labels' names, the kinds of outputs, and the user's classes and functions.

    Args:
        value: gives a parameter by its name.

    Raises:
        TypeError, ValueError: it is missing, or of another kind.
        DataError: it cannot be sent.
    """
    model = value("model")
    if not isinstance(model, keras_of(model).Model):
        raise TypeError(f"model must be a model of Keras 3 or Keras 2 (keras.Model); got {describe_value(model)}.")
    labels = check_labels(value)
    shapes = value("label_shapes")
    callbacks = value("callbacks")
    checkpoint_callback = value("checkpoint_callback")
    for callback in [*callbacks, *([checkpoint_callback] if checkpoint_callback is not None else [])]:
        if not any(isinstance(callback, keras.callbacks.Callback) for keras in imported()):
            raise TypeError(f"callbacks are objects of keras.callbacks.Callback; one was {describe_value(callback)}.")
    if checkpoint_callback is not None and not any(
        isinstance(checkpoint_callback, keras.callbacks.ModelCheckpoint) for keras in imported()
    ):
        raise TypeError(
            f"checkpoint_callback must be a keras.callbacks.ModelCheckpoint; got {describe_value(checkpoint_callback)}."
        )
    recipe = _make_recipe(model, value, len(labels))
    losses = recipe.loss if isinstance(recipe.loss, (list, tuple)) else [recipe.loss]
    if isinstance(recipe.loss, (list, tuple)) and len(losses) != len(labels):
        raise ValueError(f"{len(losses)} losses were given for {len(labels)} label columns: one for each is needed.")
    metrics = recipe.metrics if isinstance(recipe.metrics, (list, tuple)) else []
    functions = [*_find_functions(recipe.metrics), *_find_functions(recipe.weighted_metrics)]
    warn_of_averages(
        ((get_name(function), function) for function in functions),
        "Keras' metric objects, such as keras.metrics.AUC(), count all rows.",
    )
    custom = {**find_custom_objects(model, recipe.optimizer, *losses, *metrics), **(value("custom_objects") or {})}
    parts = KerasParts(
        backend=get_backend_name(model),
        environment={name: str(item) for name, item in (value("backend_env") or {}).items()},
        model=dump_model(model),
        custom_objects=pack("custom_objects", custom),
        recipe=pack("the optimizer, the loss or a metric", recipe),
        callbacks=pack("callbacks", list(callbacks)),
        checkpoint_callback=pack("checkpoint_callback", checkpoint_callback),
        compression=pack("gradient_compression", value("gradient_compression")),
        label_shapes=shapes,
        identity=_make_identity(model, recipe, value),
    )
    return parts, labels, get_output_kinds(model, recipe.loss, len(labels)), custom


def get_backend_name(model: Any) -> str:
    """Return the backend on which a model was made, for `spec.choose_backend`: Keras 3's backend, or ``"tf_keras"``."""
    return "tf_keras" if is_keras_2(model) else backend(model)


def _make_recipe(model: Any, value: Callable[[str], Any], labels: int) -> Recipe:
    """Return the estimator's arguments; for each one that is not set, the one that the model was compiled with."""
    of_model = get_arguments(model)
    optimizer = value("optimizer")
    if optimizer is None and of_model is not None:
        optimizer = model.optimizer
    if isinstance(optimizer, (str, dict)):
        optimizer = keras_of(model).optimizers.get(optimizer)
    number = "2, as the model is" if is_keras_2(model) else 3
    if not is_optimizer(optimizer) or is_keras_2(optimizer) != is_keras_2(model):
        missing = "model is not compiled, so that optimizer= is needed" if optimizer is None else f"was {optimizer!r}"
        raise TypeError(f"optimizer is an optimizer of Keras {number}, or its name; {missing}.")
    if find_exchange(optimizer) is not None:
        raise ValueError(
            f"optimizer {optimizer_name(optimizer)!r} is a DistributedOptimizer already: give the plain one, which the "
            "processes wrap."
        )
    passes = getattr(find_innermost(optimizer), "gradient_accumulation_steps", None) or 1
    if passes > 1 and value("backward_passes_per_step") > 1:
        raise ValueError(
            f"the optimizer has gradient_accumulation_steps={passes}, and backward_passes_per_step="
            f"{value('backward_passes_per_step')} would accumulate once more: give one of the two."
        )
    state = get_values(list_variables(optimizer)) if is_built(optimizer) else None
    rate = value("learning_rate")
    if rate is not None:
        optimizer, state = _set_rate(optimizer, rate), None
    loss_argument = value("loss") or []
    loss = loss_argument[0] if len(loss_argument) == 1 else loss_argument or (of_model and of_model.loss)
    if loss is None:
        raise ValueError("loss is missing, and the model is not compiled with one: say loss='mse', for example.")
    weights = value("loss_weights")
    if weights is None and of_model is not None and not loss_argument:
        weights = of_model.loss_weights
    if isinstance(weights, list) and len(weights) != labels:
        raise ValueError(f"{len(weights)} loss_weights were given for {labels} label columns.")
    metrics = value("metrics") or (of_model and of_model.metrics)
    return Recipe(
        optimizer=optimizer,
        state=state,
        loss=loss,
        loss_weights=weights[0] if isinstance(weights, list) and labels == 1 else weights,
        metrics=metrics[0] if labels > 1 and isinstance(metrics, list) and [*map(type, metrics)] == [dict] else metrics,
        weighted_metrics=of_model and of_model.weighted_metrics,
        run_eagerly=bool(of_model and model.run_eagerly),
        compiles=not (of_model and model.jit_compile is False and backend(model) != "tensorflow"),
    )


def _find_functions(metrics: Any) -> Iterator[Callable[..., Any]]:
    """Yield the functions among metrics, as model.compile takes these: Keras averages what they return."""
    if isinstance(metrics, Mapping):
        metrics = list(metrics.values())
    if isinstance(metrics, (list, tuple)):
        for metric in metrics:
            yield from _find_functions(metric)
        return
    function = getattr(metrics, "_fn", metrics)  # of Keras' MeanMetricWrapper
    of_keras = (type, *(keras.metrics.Metric for keras in imported()))
    if callable(function) and not isinstance(function, of_keras):
        yield function


def _set_rate(optimizer: Any, rate: float) -> Any:
    """Return a new optimizer of the same kind with another learning rate."""
    config = optimizer.get_config()
    if "inner_optimizer" in config:
        made = type(optimizer).from_config(config)
        find_innermost(made).learning_rate = rate
        return made
    return type(optimizer).from_config({**config, "learning_rate": rate})


def get_output_kinds(model: Any, loss: Any, labels: int) -> list[OutputKind]:
    """Return [labels] the kinds of a model's outputs.

    Args:
        loss: one for all outputs, a list with one for each, or a dict by their names.
    """
    if isinstance(loss, Mapping):
        losses = [loss.get(name) for name in getattr(model, "output_names", ())]
    else:
        losses = list(loss) if isinstance(loss, (list, tuple)) else [loss] * labels
    return [get_output_kind(each) for each in (losses if len(losses) == labels else [None] * labels)]


def get_output_kind(loss: Any) -> OutputKind:
    """Return the kind of outputs that a Keras loss expects; see `prediction_columns`."""
    logits = hasattr(loss, "get_config") and bool(loss.get_config().get("from_logits"))
    if isinstance(loss, functools.partial):
        loss, logits = loss.func, bool(loss.keywords.get("from_logits"))
    named = loss if hasattr(loss, "__name__") else type(loss)
    if isinstance(named, type):
        named = find_computing_class("call", named, _OF_KERAS)
    if not isinstance(loss, str) and str(named.__module__).partition(".")[0] not in _OF_KERAS:
        return None  # of the user's, perhaps by the same name
    plain = re.sub(r"[^a-z]", "", (loss if isinstance(loss, str) else named.__name__).lower())
    if plain in ("binarycrossentropy", "bce", "binaryfocalcrossentropy"):
        return "logit" if logits else "probability"
    if plain in ("categoricalcrossentropy", "sparsecategoricalcrossentropy", "categoricalfocalcrossentropy"):
        return "logits" if logits else "probabilities"
    return None


def _make_identity(model: Any, recipe: Recipe, value: Callable[[str], Any]) -> Identity:
    losses = recipe.loss if isinstance(recipe.loss, (list, tuple)) else [recipe.loss]
    config = recipe.optimizer.get_config()
    return {
        "model": [f"a layer of class {get_name(layer)}" for layer in model._flatten_layers()],
        "model's numbers": describe_variables(model.weights),
        # Not its name, which Keras numbers within a process.
        "optimizer": [
            get_name(recipe.optimizer),
            *(f"{key}={_describe_setting(item)}" for key, item in _sort_settings(config)),
        ],
        "loss": [*map(_describe_loss, losses), f"loss_weights={recipe.loss_weights}"],
        "steps": [
            f"backend={get_backend_name(model)}",
            f"gradient_compression={get_name(value('gradient_compression'))}",
        ],
    }


def _describe_loss(loss: Any) -> str:
    if isinstance(loss, (str, dict)) or not hasattr(loss, "get_config"):
        return loss if isinstance(loss, str) else get_name(loss)
    # Configurations of Keras' losses lack some settings, and those of the user's may lack all.
    unlisted = {name: value for name, value in vars(loss).items() if not name.startswith("_") and name != "fn"}
    config = {**unlisted, **getattr(loss, "_fn_kwargs", {}), **loss.get_config()}
    settings = (f"{key}={_describe_setting(setting)}" for key, setting in sorted(config.items()))
    return f"{get_name(loss)}({', '.join(settings)})"


def _sort_settings(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted((key, value) for key, value in config.items() if key != "name")


def _describe_setting(setting: Any) -> str:
    """Return a setting in words that are the same in each process."""
    if setting is None or isinstance(setting, (bool, int, float, str)):
        return repr(setting)
    if isinstance(setting, dict):
        return "{" + ", ".join(f"{key}: {_describe_setting(other)}" for key, other in _sort_settings(setting)) + "}"
    return (
        "[" + ", ".join(map(_describe_setting, setting)) + "]" if isinstance(setting, Sequence) else get_name(setting)
    )
