"""The names of PyTorch metrics: in log lines, the history, plots, MLflow and the progress display."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Metric = Callable[..., Any]
# The column names that the history already has.
_RESERVED = ("epoch", "loss")


def group_metrics(metrics: Sequence[Any], labels: Sequence[str]) -> tuple[list[list[Metric]], list[list[str]]]:
    """Return the metrics of each label, and their names.

    Args:
        metrics: functions for every label; or Horovod's lists, each of which has one function for every label, or
            one per label; or one dict of functions per label, whose keys are names. A single dict is for every
            label.
        labels: the label columns. With several, names begin with the column: ``price_mae``.

    Returns:
        [labels][metrics] functions, and [labels][metrics] names; no name occurs twice.

    Raises:
        TypeError: a key of a dict is not a non-empty string.
        ValueError: a list has as many functions as neither one nor one per label, or there are as many dicts.
    """
    groups: list[Any]
    if len(metrics) == 1 and isinstance(metrics[0], Mapping):
        groups = [metrics[0]] * len(labels)
    elif any(isinstance(metric, Mapping) for metric in metrics):
        groups = [metric if isinstance(metric, (list, tuple, Mapping)) else [metric] for metric in metrics]
        if len(groups) != len(labels):
            raise ValueError(f"metrics has {len(groups)} dicts for {len(labels)} label columns; give one per column.")
    elif any(isinstance(metric, (list, tuple)) for metric in metrics):
        lists = [list(metric) if isinstance(metric, (list, tuple)) else [metric] for metric in metrics]
        for number, functions in enumerate(lists):
            if len(functions) not in (1, len(labels)):
                raise ValueError(
                    f"metrics[{number}] has {len(functions)} functions for {len(labels)} label columns; give one for "
                    "all columns, one per column, or a dict of functions for each column."
                )
        groups = [[functions[min(index, len(functions) - 1)] for functions in lists] for index in range(len(labels))]
    else:
        groups = [list(metrics)] * len(labels)
    for group in groups:
        for name in group if isinstance(group, Mapping) else ():
            if not isinstance(name, str) or not name:
                raise TypeError(f"the keys of a dict of metrics are their names; got {name!r}.")
    functions = [list(group.values() if isinstance(group, Mapping) else group) for group in groups]
    keys = [list(group) if isinstance(group, Mapping) else [None] * len(group) for group in groups]
    return functions, name_metrics(functions, labels, keys)


def name_metrics(
    groups: Sequence[Sequence[Metric]], labels: Sequence[str] = (), keys: Sequence[Sequence[str | None]] = ()
) -> list[list[str]]:
    """Return names for metrics.

    A name is the key of a dict, else the metric's attribute ``name``, else its ``__name__``, else its class:
    ``BinaryAccuracy``. A lambda is called ``metric_1`` by its position. The second of two equal names becomes
    ``accuracy_2``.

    Args:
        groups: [labels][metrics] functions.
        labels: the label columns; without them, columns are numbered.
        keys: [labels][metrics] names from dicts, None for metrics without one.

    Returns:
        [labels][metrics] names.
    """
    used = set(_RESERVED)
    result = []
    for index, group in enumerate(groups):
        prefix = "" if len(groups) == 1 else f"{labels[index] if labels else index}_"
        names = []
        for number, metric in enumerate(group):
            key = keys[index][number] if keys else None
            names.append(_make_unique(prefix + (key or _find_name(metric) or f"metric_{number + 1}"), used))
        result.append(names)
    return result


def group_values(labels: Sequence[str], values: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return [labels][metrics] values as Horovod's history has them: ``[{"group_0_y": 0.5, "group_0_z": 0.25},
    ...]``.
    """
    count = max(map(len, values), default=0)
    return [
        {
            f"group_{number}_{labels[index] if labels else index}": of_label[number]
            for index, of_label in enumerate(values)
            if number < len(of_label)
        }
        for number in range(count)
    ]


def key_by_name(names: Iterable[Sequence[str]], values: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return [labels][metrics] values by their names."""
    return {
        name: value
        for group, of_group in zip(names, values, strict=True)
        for name, value in zip(group, of_group, strict=True)
    }


def _find_name(metric: Metric) -> str | None:
    """Return the metric's own name; None for a lambda."""
    while isinstance(metric, functools.partial) and not isinstance(getattr(metric, "name", None), str):
        metric = metric.func
    for attribute in ("name", "__name__"):
        name = getattr(metric, attribute, None)
        if isinstance(name, str) and name:
            return None if name == "<lambda>" else name
    return type(metric).__name__


def _make_unique(name: str, used: set[str]) -> str:
    """Return `name`, or the first of ``name_2``, ``name_3``... that is not in `used`, to which it is added."""
    result, number = name, 1
    while result in used:
        number += 1
        result = f"{name}_{number}"
    used.add(result)
    return result
