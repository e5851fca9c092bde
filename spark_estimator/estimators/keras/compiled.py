"""Reads what a model was compiled with; compiles the training step on TensorFlow once, for batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from spark_estimator.keras.importing import backend, is_keras_2, keras_of


class CompileArguments(NamedTuple):
    """The user's arguments of ``model.compile``."""

    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any


def get_arguments(model: Any) -> CompileArguments | None:
    """Return the arguments that a model was compiled with; None if it was not."""
    if is_keras_2(model):
        losses, metrics = getattr(model, "compiled_loss", None), getattr(model, "compiled_metrics", None)
        if losses is None or metrics is None:
            return None
        of_metrics = getattr(metrics, "_user_metrics", None), getattr(metrics, "_user_weighted_metrics", None)
        return CompileArguments(losses._user_losses, losses._user_loss_weights, *of_metrics)
    if not getattr(model, "compiled", False):
        return None
    losses, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    return CompileArguments(
        getattr(losses, "_user_loss", None),
        getattr(losses, "_user_loss_weights", None),
        getattr(metrics, "_user_metrics", None),
        getattr(metrics, "_user_weighted_metrics", None),
    )


def compile_step(model: Any) -> None:
    """Set the function that a model's ``train_on_batch`` calls. Does nothing on other backends.

    Keras compiles for the size of the first batch, and again, for all sizes, at a batch of another size. The two
    programs may round differently, so that a run that resumes with a short batch would not end with the same bits
    as a run that began with a long one.

    Args:
        model: compiled and built.
    """
    if backend(model) != "tensorflow" or model.run_eagerly:
        return
    if type(model).make_train_function is not keras_of(model).Model.make_train_function:
        return  # the model's author knows better
    step: Callable[..., Any] | None = None

    def train(batches: Iterator[tuple[Any, ...]]) -> Any:
        nonlocal step
        data = next(batches)
        present = tuple(item for item in data if item is not None)
        if step is None:
            # Of the batch that Keras passes: Keras 2 makes tuples of lists, and casts floats.
            step = _compile_any_size(model, present, absent=len(data) - len(present))
        return step(*present)

    model.train_function = train


def _compile_any_size(model: Any, batch: tuple[Any, ...], absent: int) -> Callable[..., Any]:
    """Compile a model's ``train_step`` for batches of any size.

    Args:
        batch: (inputs, labels) or (inputs, labels, weights) of any size, in the structure of all batches.
        absent: the number of items of None after them.
    """
    import tensorflow

    def make_spec(array: Any) -> Any:
        return tensorflow.TensorSpec((None, *array.shape[1:]), array.dtype)

    @tensorflow.function(input_signature=tensorflow.nest.map_structure(make_spec, batch), jit_compile=model.jit_compile)
    @tensorflow.autograph.experimental.do_not_convert
    def step(*arrays: Any) -> Any:
        return model.train_step((*arrays, *(None,) * absent))

    return step  # type: ignore[no-any-return]
