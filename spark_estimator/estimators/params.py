"""The parameters that estimators share, from one table: names, defaults, what is accepted, and their setters.

Each is a Spark ML `Param`, so `copy`, `ParamMap`, `Pipeline` and `CrossValidator` know it; ``setNumProc(2)`` and
``getNumProc()`` are made from ``num_proc``. Setters return self.
"""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params

REQUIRED = object()


@dataclass(frozen=True)
class Row:
    """One parameter.

    Attributes:
        name: as the constructor's keyword.
        default: REQUIRED: there is none, and fit() asks for it.
        check: takes what the user gives and returns it as it is kept; raises TypeError or ValueError.
        doc: one sentence.
    """

    name: str
    default: Any
    check: Callable[[str, Any], Any]
    doc: str

    @property
    def camel(self) -> str:
        """``num_proc`` as ``NumProc``."""
        return "".join(part.capitalize() for part in self.name.split("_"))


def anything(name: str, value: Any) -> Any:
    """Takes it as it is."""
    return value


def whole(least: int) -> Callable[[str, Any], int | None]:
    """A whole number, at least `least`; or None."""

    def check(name: str, value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is a whole number; it was {value!r} of type {type(value).__name__}.")
        if value < least:
            raise ValueError(f"{name} is at least {least}; it was {value}.")
        return int(value)

    return check


def truth(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        raise TypeError(f"{name} is True or False; it was {value!r}.")
    return bool(value)


def text(name: str, value: Any) -> str | None:
    """Text, or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is text; it was {value!r} of type {type(value).__name__}.")
    return value


def names(name: str, value: Any) -> list[str] | None:
    """A list of names, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name} is a list of column names; it was the single text {value!r}: say [{value!r}].")
    found = list(value)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"{name} is a list of column names; it holds {one!r}.")
    if len(set(found)) < len(found):
        twice = next(one for one in found if found.count(one) > 1)
        raise ValueError(f"{name} names {twice!r} twice.")
    return found


def weights(name: str, value: Any) -> list[float] | None:
    """A list of numbers, or None."""
    if value is None:
        return None
    return [float(one) for one in value]


def shapes(name: str, value: Any) -> list[list[int]] | None:
    """A list of shapes, the first extent of each being -1: the rows of the batch; or None."""
    if value is None:
        return None
    found = []
    for shape in value:
        extents = [int(extent) for extent in shape]
        if extents[:1] != [-1] or any(extent < 1 for extent in extents[1:]):
            raise ValueError(
                f"{name} is a list of shapes that begin with -1 (the rows of a batch), for example [[-1, 20]]; "
                f"it holds {shape!r}."
            )
        found.append(extents)
    return found


def share_or_column(name: str, value: Any) -> float | str | None:
    """A share of the rows in [0, 1), or the name of a column that marks them."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is a share of the rows, or a column's name; it was {value!r}.")
    if not 0 <= value < 1:
        raise ValueError(f"{name} as a share of the rows is at least 0 and less than 1; it was {value!r}.")
    return float(value)


def null_policy(name: str, value: Any) -> str | float:
    """'error', 'drop', or a number."""
    if value in ("error", "drop"):
        return str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"{name} is 'error', 'drop', or a number that takes the place of nulls; it was {value!r}.")


def listed(name: str, value: Any) -> list[Any]:
    """A list; what is no list becomes one of one."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


#: Of every estimator.
SHARED = (
    Row("num_proc", None, whole(1), "processes that train; None: as many as spark.default.parallelism and slots allow"),
    Row("model", None, anything, "the model; required"),
    Row("backend", None, anything, "where to train: a SparkBackend; together with num_proc it is refused"),
    Row("store", None, anything, "where a checkpoint of each epoch is kept; None: none is"),
    Row("optimizer", None, anything, "the optimizer; required"),
    Row("loss", None, listed, "one loss, or a list with one for each label"),
    Row("loss_weights", None, weights, "a weight for each loss; None: equal ones that add up to 1"),
    Row("metrics", [], listed, "functions of (output, label), or a list of such lists, one for each label"),
    Row("feature_cols", None, names, "the model's inputs; None: all columns that are not labels, weights or marks"),
    Row("label_cols", None, names, "what the model shall predict, a column for each output; required"),
    Row("sample_weight_col", None, text, "a column whose number multiplies its row's loss"),
    Row("validation", None, share_or_column, "a share of the rows, or a column of 0 and 1 that marks them; None: none"),
    Row("batch_size", 32, whole(1), "rows of a batch, on each process"),
    Row("val_batch_size", None, whole(1), "the same in validation; None: as batch_size"),
    Row("epochs", 1, whole(1), "how often all rows are read"),
    Row("train_steps_per_epoch", None, whole(1), "an epoch ends after so many batches; None: when all rows are read"),
    Row("validation_steps_per_epoch", None, whole(1), "the same in validation"),
    Row("verbose", 1, whole(0), "0: nothing is printed; 1: a line for each epoch"),
    Row("gradient_compression", None, anything, "a member of Compression: what gradients are sent as"),
    Row(
        "max_restarts",
        0,
        whole(0),
        "how often a training that lost a process is started anew, from its last checkpoint",
    ),
    Row("random_seed", None, whole(0), "makes the result repeatable for one number of processes; None: drawn"),
    Row("shuffle", True, truth, "rows are read in another order in each epoch"),
    Row(
        "run_id", None, text, "names this training: with a store, the same name again goes on from its last checkpoint"
    ),
    Row(
        "early_stopping_patience", None, whole(1), "ends when the loss, of validation if any, is no better for n epochs"
    ),
    Row("restore_best", False, truth, "brings back the best epoch's model, not the last one's"),
    Row("use_gpu", True, truth, "False: no GPU is used, where there are any"),
    Row("backward_passes_per_step", 1, whole(1), "batches whose gradients are added up before a step"),
    Row("label_shapes", None, shapes, "shapes of the labels; None: as the outputs, where they hold as many values"),
    Row("nulls", "error", null_policy, "what to do with nulls: 'error', 'drop' the row, or a number in their place"),
)

#: Taken so that code written for Horovod runs: what they were for is not needed here.
WITHOUT_EFFECT = {
    "partitions_per_process": "rows go to the processes directly, not through files in partitions",
    "shuffle_buffer_size": "all rows of a process are shuffled together",
    "train_reader_num_workers": "rows are mapped from disk; nothing decodes them",
    "val_reader_num_workers": "rows are mapped from disk; nothing decodes them",
    "reader_pool_type": "rows are mapped from disk; nothing decodes them",
    "inmemory_cache_all": "rows lie in the page cache after the first epoch",
    "compress_sparse_cols": "rows go to the processes directly, not through files",
    "mp_start_method": "processes are started afresh",
}

_Self = TypeVar("_Self", bound="TableParams")


class TableParams(Params):
    """Params made from a table.

    A subclass is decorated with `with_params`.
    """

    _rows: Sequence[Row] = ()

    def _take(self, given: dict[str, Any]) -> None:
        """Sets what a constructor or setParams was given.

        Raises:
            TypeError: an unknown name, or a value of a wrong type.
            ValueError: a wrong value.
        """
        known = {row.name: row for row in self._rows}
        for name, value in given.items():
            if name in WITHOUT_EFFECT:
                warnings.warn(f"{name} has no effect: {WITHOUT_EFFECT[name]}.", stacklevel=4)
            elif name not in known:
                has = ", ".join(row.name for row in self._rows)
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}; it has {has}.")
            else:
                self._set(**{name: value})

    def setParams(self: _Self, **kwargs: Any) -> _Self:  # Spark ML's name
        """Sets any of the parameters; returns self."""
        self._take(kwargs)
        return self

    def _value(self, name: str) -> Any:
        return self.getOrDefault(self.getParam(name))


def with_params(rows: Sequence[Row]) -> Callable[[type[_Self]], type[_Self]]:
    """Gives a class its params, setters, getters and a constructor's signature."""

    def decorate(cls: type[_Self]) -> type[_Self]:
        cls._rows = rows
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, _converter(row)))
            setattr(cls, f"set{row.camel}", _setter(row))
            setattr(cls, f"get{row.camel}", _getter(row))
        keywords = [inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=row.default) for row in rows]
        cls.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return cls

    return decorate


def _converter(row: Row) -> Callable[[Any], Any]:
    # Spark names the param in front of what a converter raises as TypeError, and lets a ValueError through.
    return lambda value: row.check(row.name, value)


def _setter(row: Row) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        self._set(**{row.name: value})
        return self

    setter.__name__ = f"set{row.camel}"
    setter.__doc__ = f"Sets {row.name}: {row.doc}. Returns self."
    return setter


def _getter(row: Row) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self._value(row.name)

    getter.__name__ = f"get{row.camel}"
    getter.__doc__ = f"{row.name}: {row.doc}."
    return getter
