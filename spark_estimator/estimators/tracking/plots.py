"""The pictures of a run: the losses, and each metric, over the epochs."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import Any

from spark_estimator.estimators.history import Epochs, flatten_time
from spark_estimator.observe.step_times import StepParts


def draw_history(history: Epochs) -> dict[str, Any]:
    """Return matplotlib's figures by the names of their files; none if matplotlib is missing or there is no epoch."""
    rows = history.to_rows()
    if not rows or importlib.util.find_spec("matplotlib") is None:
        return {}
    from matplotlib.figure import Figure

    prefixes = [loss.removesuffix("loss") for loss in history.losses]
    others = {"epoch", *flatten_time({"time": dict.fromkeys(StepParts._fields, 0.0)})}
    names = dict.fromkeys(name for row in rows for name in row if name not in others)
    pictures: dict[str, Any] = {}
    for name in dict.fromkeys(_strip_prefix(name, prefixes) for name in names):
        figure = Figure(figsize=(6, 4), layout="tight")
        history.plot(figure.subplots(), None if name == "loss" else [name])
        pictures[_choose_path(name, pictures)] = figure
    return pictures


def _strip_prefix(name: str, prefixes: list[str]) -> str:
    """Return a column's metric, of which there may be one of training and one of validation: the longest prefix is
    removed.
    """
    prefix = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
    return name[len(prefix) :] or name


def _choose_path(name: str, used_paths: Collection[str]) -> str:
    """Return the path of a metric's picture; none of those that are known."""
    file = "".join(character if character.isalnum() or character in "-_. " else "_" for character in name)
    paths = (
        f"plots/{file}{suffix}.png" for suffix in ("", *(f" {number}" for number in range(2, len(used_paths) + 2)))
    )
    return next(path for path in paths if path not in used_paths)
