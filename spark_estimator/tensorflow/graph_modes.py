"""What scripts import from ``horovod.tensorflow.util``: whether TensorFlow runs eagerly, and what depends on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Return whether operations run at once; False while a graph is built."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    """Return the function as a graph, a ``tf.function``."""
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a memory: called once for each tuple of hashable arguments, eagerly and in graphs."""
    values: dict[tuple[Any, bool], Any] = {}

    @functools.wraps(function)
    def remember(*args: Any) -> Any:
        key = args, _executing_eagerly()
        if key not in values:
            values[key] = function(*args)
        return values[key]

    return remember


def vars_to_refs(vars: Any) -> Any:
    """Return hashable references to variables; lists of them, also nested ones, become tuples."""
    if isinstance(vars, (list, tuple)):
        return tuple(map(vars_to_refs, vars))
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of `vars_to_refs`; tuples become lists."""
    if isinstance(refs, (list, tuple)):
        return list(map(refs_to_vars, refs))
    return refs.deref()
