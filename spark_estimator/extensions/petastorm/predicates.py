"""Petastorm's predicates: which rows a reader reads. A predicate names the columns that it looks at.

A reader of batches asks a predicate once for all rows of a row group, and one of rows (`make_reader`) for each row.
Unlike petastorm's, all predicates of this module work in both, on any columns.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from spark_estimator.data.fields import Array

if TYPE_CHECKING:
    import pandas

# A function that takes a row group as a whole answers such numbers of rows, too. Few texts and arrays are as long.
_PROBES = (1009, 1010)


class PredicateBase(ABC):
    """The base class of users' predicates."""

    @abstractmethod
    def get_fields(self) -> set[str]:
        """Return the names of the columns that `do_include` looks at."""

    @abstractmethod
    def do_include(self, values: Any) -> Any:
        """Return whether a row is read.

        Args:
            values: a dict of one row; from a reader of batches also a pandas.DataFrame of many.

        Returns:
            True or false; for a DataFrame a pandas.Series of them. A function that returns another type or length for
            a DataFrame, or raises, is called for each row instead. To find that out, each row group is preceded by
            DataFrames of 1,009 and 1,010 of its rows, repeated where it has fewer.
        """


class in_set(PredicateBase):
    """Rows whose value in the column `predicate_field` is one of `inclusion_values`."""

    def __init__(self, inclusion_values: Iterable[Any], predicate_field: str) -> None:
        self._values = set(inclusion_values)
        self._field = predicate_field

    def get_fields(self) -> set[str]:
        return {self._field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        return values[self._field] in self._values


class in_intersection(PredicateBase):
    """Rows whose array in the column `_predicate_field` holds at least one of `inclusion_values`."""

    def __init__(self, inclusion_values: Iterable[Any], _predicate_field: str) -> None:
        self._values = list(inclusion_values)
        self._field = _predicate_field

    def get_fields(self) -> set[str]:
        return {self._field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        value = values[self._field]
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise ValueError(f"in_intersection needs a column of arrays; {self._field!r} holds {value!r}.")
        return bool(numpy.isin(numpy.asarray(value), self._values).any())


class in_lambda(PredicateBase):
    """Rows for which a function returns true.

    Args:
        predicate_fields: a list of columns.
        predicate_func: takes their values, one argument each, and then `state_arg`. A reader of batches calls it with
            a pandas.Series for each column first, as it calls `PredicateBase.do_include`.
        state_arg: None: the function does not take it.
    """

    def __init__(
        self, predicate_fields: list[str], predicate_func: Callable[..., Any], state_arg: Any | None = None
    ) -> None:
        if not isinstance(predicate_fields, list):
            raise ValueError(f"predicate_fields must be a list of names; got {predicate_fields!r}.")
        self._fields = predicate_fields
        self._function = predicate_func
        self._state = () if state_arg is None else (state_arg,)

    def get_fields(self) -> set[str]:
        return set(self._fields)

    def do_include(self, values: Any) -> Any:
        return self._function(*(values[name] for name in self._fields), *self._state)


class in_negate(PredicateBase):
    """Rows that another predicate leaves out."""

    def __init__(self, predicate: PredicateBase) -> None:
        _check([predicate])
        self.predicate = predicate

    def get_fields(self) -> set[str]:
        return self.predicate.get_fields()

    def do_include(self, values: Mapping[str, Any]) -> bool:
        return not self.predicate.do_include(values)


class in_reduce(PredicateBase):
    """Combines the results of several predicates with a function of a list of true and false: ``all``, ``any``, ..."""

    def __init__(self, predicate_list: Sequence[PredicateBase], reduce_func: Callable[[list[bool]], Any]) -> None:
        _check(predicate_list)
        self.predicates = list(predicate_list)
        self.reduce = reduce_func

    def get_fields(self) -> set[str]:
        return set().union(*(predicate.get_fields() for predicate in self.predicates))

    def do_include(self, values: Mapping[str, Any]) -> Any:
        return self.reduce([predicate.do_include(values) for predicate in self.predicates])


class in_pseudorandom_split(PredicateBase):
    """One part of the rows, by a hash of a column: the same rows in each run, and as with petastorm.

    Args:
        fraction_list: of each part; their sum is at most 1.
        subset_index: the part that is read.
        predicate_field: the column.
    """

    def __init__(self, fraction_list: Sequence[float], subset_index: int, predicate_field: str) -> None:
        if not 0 <= subset_index < len(fraction_list):
            raise ValueError(f"subset_index={subset_index}: there are {len(fraction_list)} parts, counted from 0.")
        self._field = predicate_field
        span = sys.maxsize - 1
        self._first = sum(fraction_list[:subset_index]) * span
        self._end = sum(fraction_list[: subset_index + 1]) * span

    def get_fields(self) -> set[str]:
        return {self._field}

    def do_include(self, values: Mapping[str, Any]) -> bool:
        digest = hashlib.md5(str(values[self._field]).encode(), usedforsecurity=False).hexdigest()
        return self._first <= int(digest, 16) % sys.maxsize < self._end


def _check(predicates: Sequence[Any]) -> None:
    for item in predicates:
        if not isinstance(item, PredicateBase):
            raise ValueError(f"{item!r} is no predicate: derive it from PredicateBase.")


def find_included(predicate: PredicateBase, frame: pandas.DataFrame, by_row: bool) -> Array:
    """Return [rows] which rows of a frame a predicate includes; `by_row` calls it with a dict for each row only."""
    if isinstance(predicate, in_negate):
        return ~find_included(predicate.predicate, frame, by_row)
    if isinstance(predicate, in_reduce):
        answers = [find_included(part, frame, by_row).tolist() for part in predicate.predicates]
        return numpy.fromiter((bool(predicate.reduce(list(row))) for row in zip(*answers, strict=True)), bool)
    own_frames = isinstance(predicate, in_lambda) or type(predicate).__module__ != __name__
    if own_frames and not by_row:
        mask = _call_with_frame(predicate, frame)
        if mask is not None:
            return mask
    names = list(frame.columns)
    # numpy's scalars, whose texts in_pseudorandom_split hashes as petastorm does.
    rows = zip(*(frame[name].to_numpy() for name in names), strict=True)
    return numpy.fromiter((bool(predicate.do_include(dict(zip(names, row, strict=True)))) for row in rows), bool)


def _call_with_frame(predicate: PredicateBase, frame: pandas.DataFrame) -> Array | None:
    """Return the answer for all rows at a time; None: the predicate takes single rows.

    A function for single rows may return as many values as there are rows by accident: of four rows,
    ``name[-4:]`` has four. It never has the length of two other numbers of rows.
    """
    import pandas

    if not len(frame):
        return None
    for rows in (*_PROBES, len(frame)):
        asked = frame.take(numpy.arange(rows) % len(frame)).reset_index(drop=True) if rows != len(frame) else frame
        try:
            answer = predicate.do_include(asked)
            if isinstance(answer, pandas.Series):
                answer = answer.reindex(asked.index)  # by its labels, as petastorm takes it
            mask = numpy.asarray(answer)
        except Exception:  # it may raise any error for many rows; row by row it shows its own
            return None
        if mask.dtype != bool or mask.shape != (rows,):
            return None
    return mask
