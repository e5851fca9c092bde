"""Turns categories into ids: texts, whole numbers and booleans, by a vocabulary or a hash.

Ids begin at 1. Id 0 is null, and a value that the vocabulary does not contain. Training, validation,
`transform`, `predict` and MLflow's pyfunc all call `CategoryEncoder.find_ids`. Texts are compared by their
bytes in UTF-8.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.fields import Array, is_list, replace_values
from spark_estimator.errors import DataError

#: The most ids of a column with a vocabulary: ranks and Spark's workers keep its values in memory.
MOST_IDS = 1_000_000
#: The most ids of a hash, which has 32 bits.
MOST_HASHED_IDS = 2**31 - 1
#: The most characters of a category: longer texts are sentences.
LONGEST_TEXT = 1000
_WHOLE = ("tinyint", "smallint", "int", "bigint", "boolean")
#: Arrow's types of texts, as `str` has them; older versions have no view.
_TEXTS = ("string", "large_string", "string_view")
#: How many binary digits the whole numbers have that a float has, all of them, by its bits.
_DIGITS = {16: 11, 32: 24, 64: 53}


@dataclass(frozen=True)
class CategoryEncoder(ABC):
    """Turns the values of a column into ids. It is sent to the ranks, and to Spark's workers.

    Attributes:
        name: of the column, for messages.
    """

    name: str

    @property
    @abstractmethod
    def size(self) -> int:
        """Return the number of ids: they are 0 to ``size - 1``."""

    @property
    @abstractmethod
    def entry(self) -> Any:
        """Return the column's entry in the parameter `categories`."""

    @property
    @abstractmethod
    def holds_texts(self) -> bool | None:
        """Return whether its values are texts; None: they may be texts or numbers."""

    @abstractmethod
    def _find_id(self, value: bytes | int) -> int:
        """Return the id of a value: a number, or a text in UTF-8."""

    @property
    def summary(self) -> str:
        """Return its values in a line: equal for equal ids."""
        return f"{self.name}: {self.size} ids, checksum {zlib.crc32(repr(self.entry).encode()):08x}"

    def check(self, name: str, kind: str) -> None:
        """Raise DataError for a column whose type does not fit.

        Args:
            name: of the column.
            kind: its Spark type, as ``simpleString`` has it.

        Raises:
            DataError: the column does not hold categories, or texts where the values are numbers, or numbers where
                they are texts.
        """
        element = kind[len("array<") : -1] if kind.startswith("array<") else kind
        if not is_text(element) and element not in _WHOLE:
            raise DataError(
                f"categories refers to column {name!r} ({kind}), but categories are texts, whole numbers or booleans, "
                "or arrays of them. Cast the column, for example to string, or remove its entry."
            )
        if self.holds_texts not in (None, is_text(element)):
            are, to = ("texts", "string") if self.holds_texts else ("whole numbers", "bigint")
            raise DataError(
                f"the categories of column {name!r} are {are}, such as {self.entry[0]!r}, but its type is {kind}. "
                f"Cast it to {to}."
            )

    def find_ids(self, array: pyarrow.Array) -> pyarrow.Array:
        """Return the ids of a column's values.

        Args:
            array: [rows] values, or arrays of values.

        Returns:
            [rows] int64 without nulls; of arrays [rows] arrays of int64, and null where there is no array.

        Raises:
            DataError: the values are of another type than the categories.
        """
        if is_list(array.type):
            return replace_values(array, self.find_ids(array.flatten()))
        encoded = self.find_keys(array).dictionary_encode()
        ids = numpy.array([*map(self._find_id, encoded.dictionary.to_pylist()), 0], numpy.int64)
        return pyarrow.array(ids[pyarrow.compute.fill_null(encoded.indices, len(ids) - 1).to_numpy()])

    def find_keys(self, array: pyarrow.Array) -> pyarrow.Array:
        """Return [rows] the values as they are compared: int64, or texts in UTF-8; nulls are left.

        Raises:
            DataError: as `find_ids`.
        """
        types, kind = pyarrow.types, array.type
        if types.is_null(kind):
            return array.cast(pyarrow.int64())
        holds_texts = str(kind) in _TEXTS
        if self.holds_texts in (None, holds_texts):
            if holds_texts:
                return array.cast(pyarrow.large_string()).cast(pyarrow.large_binary())
            # pandas has whole numbers as floats where some are missing.
            if types.is_floating(kind):
                self._check_floats(array)
            if types.is_integer(kind) or types.is_boolean(kind) or types.is_floating(kind):
                try:
                    return array.cast(pyarrow.int64())
                except pyarrow.ArrowInvalid as error:
                    raise DataError(
                        f"column {self.name!r} holds a number that is no whole number of 64 bits: {error}"
                    ) from error
        expected = {True: "texts", False: "whole numbers", None: "texts or whole numbers"}[self.holds_texts]
        raise DataError(f"column {self.name!r} is of type {kind}; its categories are {expected}.")

    def _check_floats(self, array: pyarrow.Array) -> None:
        """Raise DataError for floats that may have been other whole numbers, before they were rounded."""
        digits = _DIGITS[array.type.bit_width]
        largest = float(numpy.fmax.reduce(abs(array.drop_null().to_numpy()), initial=0))
        if 1 << digits <= largest <= 1 << 63:
            raise DataError(
                f"column {self.name!r} holds {largest!r} as a {array.type}, which has no whole numbers apart from 2**"
                f"{digits} on: several categories may have become one. Give it as whole numbers; with nulls, in "
                "pandas, as astype('Int64') before they are floats."
            )


@dataclass(frozen=True)
class Vocabulary(CategoryEncoder):
    """Knows all values.

    Attributes:
        values: with the ids 1, 2 and so on: all texts, or all whole numbers.
    """

    values: tuple[str, ...] | tuple[int, ...] = field(repr=False)

    @property
    def size(self) -> int:
        return len(self.values) + 1

    @property
    def entry(self) -> list[Any]:
        return list(self.values)

    @property
    def holds_texts(self) -> bool:
        return isinstance(self.values[0], str)

    @cached_property
    def _known(self) -> dict[bytes | int, int]:
        """Return the ids by value, made at the first use."""
        keys = [value.encode("utf-8", "replace") if isinstance(value, str) else value for value in self.values]
        return {value: number for number, value in enumerate(keys, 1)}

    def _find_id(self, value: bytes | int) -> int:
        return self._known.get(value, 0)

    def find_common_ids(self, other: Vocabulary) -> list[tuple[int, int]]:
        """Return the ids of each value that another vocabulary has, too: here, and there."""
        return [(number, other._known[value]) for value, number in self._known.items() if value in other._known]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.values)


@dataclass(frozen=True)
class Hashing(CategoryEncoder):
    """Knows no values: an id is ``1 + crc32(value) % (size - 1)``; a number is hashed as its decimal digits.

    Spark has the same function: ``crc32(cast(value as string))``.

    Attributes:
        count: the number of ids.
    """

    count: int

    @property
    def size(self) -> int:
        return self.count

    @property
    def entry(self) -> Any:
        return {"hash": self.size}

    @property
    def holds_texts(self) -> None:
        return None

    def _find_id(self, value: bytes | int) -> int:
        return 1 + zlib.crc32(value if isinstance(value, bytes) else b"%d" % value) % (self.size - 1)


@dataclass(frozen=True)
class Shared(CategoryEncoder):
    """Has the ids of another column, so that one embedding is for both.

    Attributes:
        of: the other column's encoder.
    """

    of: CategoryEncoder

    @property
    def size(self) -> int:
        return self.of.size

    @property
    def entry(self) -> str:
        return self.of.name

    @property
    def holds_texts(self) -> bool | None:
        return self.of.holds_texts

    def check(self, name: str, kind: str) -> None:
        """See `CategoryEncoder.check`."""
        self.of.check(name, kind)

    def _find_id(self, value: bytes | int) -> int:
        return self.of._find_id(value)


class Uncounted(Hashing):
    """A vocabulary before its values are counted: its ids have the same range, to try a model with."""

    @property
    def entry(self) -> int:
        return self.size


def make_encoders(categories: Mapping[str, Any] | None) -> dict[str, CategoryEncoder]:
    """Return encoders by column, of the parameter `categories` as `checks.check_categories` returns it."""
    entries = categories or {}
    alone = {name: make_encoder(name, entry) for name, entry in entries.items() if not isinstance(entry, str)}
    return {name: alone[name] if name in alone else Shared(name, alone[entry]) for name, entry in entries.items()}


def make_encoder(name: str, entry: Any) -> CategoryEncoder:
    """Return the encoder of an entry of the parameter `categories` that does not name another column.

    Args:
        name: of the column, for messages.
    """
    if isinstance(entry, Mapping):
        return Hashing(name, entry["hash"])
    return Uncounted(name, entry) if isinstance(entry, int) else Vocabulary(name, tuple(entry))


def set_largest_ids(batch: pyarrow.RecordBatch, sizes: Sequence[int]) -> pyarrow.RecordBatch:
    """Return a batch of ids whose first row has the largest id of each column, so that a trial shows an embedding's
    size.

    Args:
        sizes: [columns] the numbers of ids; 0: the column is left as it is.
    """
    columns = [
        _set_first(column, size - 1) if size else column for column, size in zip(batch.columns, sizes, strict=True)
    ]
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def is_text(kind: str) -> bool:
    """Return whether a Spark type, as ``simpleString`` has it, is one of texts, with a length or a collation."""
    return kind.startswith(("string", "varchar", "char"))


def _set_first(ids: pyarrow.Array, value: int) -> pyarrow.Array:
    if is_list(ids.type):
        return replace_values(ids, _set_first(ids.flatten(), value))
    numbers: Array = ids.to_numpy().copy()
    numbers[:1] = value
    return pyarrow.array(numbers)
