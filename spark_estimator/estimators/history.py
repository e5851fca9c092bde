"""The epochs of a training, as a list that also shows itself: as a pandas frame, a picture, a table in a notebook."""

from __future__ import annotations

import html
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from spark_estimator.errors import PythonEnvironmentError

if TYPE_CHECKING:
    import pandas

_LONGEST_TEXT = 200


class Epochs:
    """Shows a history of any form as a frame, a plot or an HTML table.

    Attributes:
        losses: the columns of `to_rows` that a picture has.
    """

    losses: ClassVar[tuple[str, str]]

    @abstractmethod
    def to_rows(self) -> list[dict[str, float]]:
        """Return [epochs] flat dicts: epoch, and a value for each column."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a frame with the columns of `to_rows`, one row for each epoch."""
        import pandas

        return pandas.DataFrame(self.to_rows())

    def plot(self, axes: Any = None, names: Sequence[str] | str | None = None) -> Any:
        """Draw losses or metrics over the epochs.

        Args:
            axes: of matplotlib; None: new ones.
            names: what to draw: columns of `to_rows` (``"validation_accuracy"``), or metrics (``"accuracy"``), which
                are drawn for training and validation; None: the losses.

        Returns:
            The axes.

        Raises:
            ValueError: there is no column or metric of such a name.
            TypeError: a name is no string.
            PythonEnvironmentError: there is no matplotlib.
        """
        rows = self.to_rows()
        if isinstance(names, str):
            names = [names]
        columns = list(self.losses) if names is None else self._find_columns(names, rows)
        if axes is None:
            try:
                from matplotlib import pyplot
            except ModuleNotFoundError as error:
                raise PythonEnvironmentError(
                    "plot() draws with matplotlib, which is not there: pip install matplotlib, or use to_pandas()."
                ) from error
            axes = pyplot.subplots()[1]
        for name in columns:
            points = [(row["epoch"], row[name]) for row in rows if name in row]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=name.replace("_", " "))
        axes.set_xlabel("epoch")
        axes.legend()
        return axes

    def _find_columns(self, names: Sequence[str], rows: Sequence[Mapping[str, float]]) -> list[str]:
        """Return the columns that `names` ask for."""
        available = list(dict.fromkeys(column for row in rows for column in row if column != "epoch"))
        prefixes = [loss.removesuffix("loss") for loss in self.losses]
        result = []
        for name in names:
            if not isinstance(name, str):
                raise TypeError(f"names must be strings; got {name!r}.")
            columns = [column for prefix in prefixes if (column := prefix + name) in available]
            if not columns and name not in available:
                raise ValueError(f"the history has no {name!r}; it has {', '.join(available) or 'no epochs'}.")
            result += columns or [name]
        return list(dict.fromkeys(result))

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        rows = self.to_rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        return make_table(names, [[shorten(row[name]) if name in row else "" for name in names] for row in rows])


class History(Epochs, list[dict[str, Any]]):
    """One entry for each epoch: ``{"epoch": 0, "train": {"loss": 0.5, "all_metrics": [...]}, "validation": {...}}``.

    ``all_metrics`` is Horovod's: ``[{"group_0_y": 0.9}]`` has the first metric of the label column y. Where there are
    metrics, ``metrics`` has the same values by name: ``{"accuracy": 0.9}``. Losses and metrics are means over the rows
    of all ranks. What a LightningModule logs is in ``logged``, by its names. ``time`` has the seconds that the training
    of the epoch took without validations, on average over the ranks: ``{"input": 0.1, "compute": 2.0, "peers": 0.2,
    "network": 0.1}``, of which ``peers`` is waiting for other ranks.
    """

    losses = ("train_loss", "validation_loss")

    def to_rows(self) -> list[dict[str, float]]:
        """Return [epochs] flat dicts: epoch, train_loss, train_accuracy, validation_loss, validation_accuracy, ...

        Entries of earlier versions have no names: their metrics are train_metric_0, and with several labels
        train_metric_1_0 by label and metric.
        """
        return [_flatten(entry) for entry in self]


def to_history(name: str, value: Any) -> History:
    """Return the history that a model gets.

    Args:
        value: entries, one for each epoch; or as Horovod has it for Lightning, a dict of the last numbers that
            were logged, which becomes one entry; a dict from names to a number for each epoch; a list of losses.

    Raises:
        TypeError: it is none of these.
    """
    if value is None:
        return History()
    if isinstance(value, Mapping):
        columns = {str(key): to_numbers(f"{name}[{key!r}]", item) for key, item in value.items()}
        return History(
            {"epoch": epoch, "logged": {key: items[epoch] for key, items in columns.items() if epoch < len(items)}}
            for epoch in range(max(map(len, columns.values()), default=0))
        )
    if isinstance(value, (list, tuple)) and all(isinstance(item, Mapping) for item in value):
        return History(dict(item) for item in value)
    if isinstance(value, (list, tuple)):
        return History({"epoch": epoch, "train": {"loss": loss}} for epoch, loss in enumerate(to_numbers(name, value)))
    raise TypeError(f"{name} must be a list with an entry for each epoch; got {value!r}.")


def to_numbers(name: str, value: Any) -> list[Any]:
    """Return [epochs] Python's numbers, or None, of a number or several; these may be tensors or arrays.

    Raises:
        TypeError: there is something else.
    """
    items = value if isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1 else [value]
    result = [item.item() if getattr(item, "ndim", None) == 0 else item for item in items]
    for item in result:
        if item is not None and not isinstance(item, (int, float)):
            raise TypeError(f"{name} must be a number, or a list with a number for each epoch; got {value!r:.100}.")
    return result


def make_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return an HTML table. All values are escaped: none of them is read as HTML."""

    def make_row(tag: str, values: Sequence[Any]) -> str:
        return "<tr>" + "".join(f"<{tag}>{_escape(value)}</{tag}>" for value in values) + "</tr>"

    return f"<table>{make_row('th', names)}{''.join(make_row('td', row) for row in rows)}</table>"


def _escape(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return html.escape(text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " ...")


def shorten(value: Any) -> str:
    """Return a loss or a metric as one reads it."""
    return f"{value:.5g}" if isinstance(value, (int, float)) else str(value)


def _flatten(entry: Mapping[str, Any]) -> dict[str, float]:
    flat = {"epoch": entry["epoch"]} if "epoch" in entry else {}
    for part in ("train", "validation"):
        results = entry.get(part)
        if not results:
            continue
        flat[f"{part}_loss"] = results["loss"]
        if "skipped_steps" in results:
            flat[f"{part}_skipped_steps"] = results["skipped_steps"]
        if "metrics" in results:
            flat |= {f"{part}_{name}": value for name, value in results["metrics"].items()}
            continue
        groups = results.get("all_metrics", [])
        for label, group in enumerate(groups):
            # Of earlier versions: [labels][metrics].
            for number, value in enumerate(group.values() if isinstance(group, Mapping) else group):
                flat[f"{part}_metric_{number}" if len(groups) == 1 else f"{part}_metric_{label}_{number}"] = value
    flat |= flatten_time(entry)
    return {**flat, **{name: value for name, value in entry.get("logged", {}).items() if name not in flat}}


def flatten_time(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return where the time of an epoch went: time_input, time_compute, ...; empty in entries of earlier versions."""
    return {f"time_{name}": seconds for name, seconds in (entry.get("time") or {}).items()}
