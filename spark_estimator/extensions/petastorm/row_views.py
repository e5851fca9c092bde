"""Arrays of rows as objects in a pandas column: views of a matrix, which are made once and reused for each call.

An object for each row's array takes 70 to 100 ns to make, more than all other work on a narrow row. `ViewPool` keeps
objects over its own memory, and copies a call's rows there. They are reused only if nothing else refers to them any
more, as a function may keep a row's array: the reference counts of all objects are compared with those at the start, as
numpy reads them, 1 ns each.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
from collections.abc import Mapping

import numpy

from spark_estimator.data.fields import Array

# A row's array, its object and two references to it take no more than this in a pool; other rows get new objects.
_MOST_ROW_BYTES = 512
# An object and two references.
_OBJECT_BYTES = 128
_MOST_POOL_BYTES = 64 << 20
# A function that kept arrays so often will do so again.
_MOST_KEPT = 3


def views_of(array: Array) -> Array:
    """[rows] of objects: a row's array each, which is not writable, as petastorm's are not."""
    protected = array.view()
    protected.flags.writeable = False
    return numpy.fromiter(protected, object, len(array))


class GivenRows:
    """A column of rows' arrays as a frame gets it.

    Args:
        column: [rows] of objects, for the frame; a function may replace them.
        kept: the same objects: what keeps them alive, so that no other object gets the address of one.
    """

    def __init__(self, column: Array, kept: Array) -> None:
        self.column = column
        self._kept = kept
        self._addresses = _addresses(column)

    def are_in(self, values: Array) -> bool:
        """Whether these are the original objects, in their order: their addresses are compared."""
        if values.dtype != object or len(values) != len(self.column):
            return False
        return _addresses(numpy.ascontiguousarray(values)) == self._addresses


class OrderedViews:
    """The rows' arrays of a column in the order of each epoch.

    To take objects from an array counts a reference to each, and to free the result counts it back: two accesses to
    memory for each row, in random order. Here an array has a reference to each object, and an epoch moves these
    references: 8 bytes for each row.

    Args:
        views: of `views_of`.
    """

    def __init__(self, views: Array) -> None:
        self.views = views
        self._addresses = numpy.frombuffer(_addresses(views), numpy.int64)
        self._columns: list[_OrderedColumn] = []

    def in_order(self, numbers: Array) -> Array:
        """[rows] of the objects; calls of a function may replace them, and keep the array.

        Args:
            numbers: [rows] of all rows, in the order of the epoch.
        """
        if not _counts_are_readable():
            taken: Array = self.views.take(numbers)
            return taken
        # While calls for an epoch are made, the next epoch begins.
        column = next((column for column in self._columns if column.is_free()), None)
        if column is None:
            column = _OrderedColumn(self.views)
            self._columns = [*self._columns[-1:], column]
        column.put(self._addresses.take(numbers))
        return column.array


class _OrderedColumn:
    """An array with one reference to each object, which may change their order.

    Attributes:
        array: [rows] of objects.
    """

    def __init__(self, views: Array) -> None:
        self.array: Array = views.copy()
        self._written = numpy.frombuffer(_addresses(views), numpy.int64)
        self._words = _Words(self.array.ctypes.data, self.array.ctypes.data + 8 * (len(views) - 1), writable=True)
        self._holders = sys.getrefcount(self.array)

    def is_free(self) -> bool:
        """Whether nothing else refers to the array, and it has the objects that were put there."""
        return sys.getrefcount(self.array) == self._holders and bool((self._words.array == self._written).all())

    def put(self, addresses: Array) -> None:
        """Puts the objects into another order.

        Args:
            addresses: [rows] of all objects.
        """
        self._words.array[:] = self._written = addresses


class ViewPool:
    """Lends columns of rows' arrays to calls of a function, one call at a time in each thread."""

    def __init__(self) -> None:
        self._free: list[_Pages] = []
        self._lock = threading.Lock()
        self._kept = 0

    def __reduce__(self) -> tuple[type[ViewPool], tuple[()]]:
        return ViewPool, ()

    def lend(self, matrices: Mapping[str, Array]) -> Lent:
        """The rows of matrices [rows, ...], by name. `Lent.end` must be called when the function's frame is freed."""
        with self._lock:
            pages = self._free.pop() if self._free else {}
            pooled = self._kept < _MOST_KEPT and _counts_are_readable()
        columns: dict[str, GivenRows] = {}
        lent: _Pages = {}
        for name, matrix in matrices.items():
            if not (pooled and _is_poolable(matrix)):
                objects = views_of(matrix)
                columns[name] = GivenRows(objects, objects.copy())
                continue
            page = pages.get(name)
            if page is None or not page.takes(matrix):
                page = _ReusedViews(matrix)
            lent[name] = page
            columns[name] = page.give(matrix)
        return Lent(self, columns, lent)

    def take_back(self, pages: _Pages) -> None:
        """Takes columns back after a call; those that something refers to are dropped."""
        free = {name: page for name, page in pages.items() if page.is_free()}
        with self._lock:
            self._kept += len(free) < len(pages)
            if free:
                self._free.append(free)


class Lent:
    """Columns that are lent to one call.

    Attributes:
        columns: by name.
    """

    def __init__(self, pool: ViewPool, columns: Mapping[str, GivenRows], pages: _Pages) -> None:
        self.columns: Mapping[str, GivenRows] = columns
        self._pool = pool
        self._pages = pages

    def end(self) -> None:
        """Ends the loan. The frame must be freed before, or its objects are not reused."""
        self.columns = {}
        if self._pages:
            self._pool.take_back(self._pages)


class _ReusedViews:
    """Objects over memory that takes other rows for each call.

    Args:
        matrix: [rows, ...] of as many rows, and of the type, that calls may have.
    """

    def __init__(self, matrix: Array) -> None:
        buffer = bytearray(matrix.nbytes)
        self._memory = numpy.frombuffer(buffer, matrix.dtype).reshape(matrix.shape)
        # Over a buffer that is read-only, so that no function makes the rows writable.
        self._read_only = numpy.frombuffer(memoryview(buffer).toreadonly(), matrix.dtype)
        self._objects = views_of(self._read_only.reshape(matrix.shape))
        self._column = self._objects.copy()
        self._addresses = _addresses(self._objects)
        numbers = numpy.frombuffer(self._addresses, numpy.int64)
        first = int(numbers.min())
        self._words = _Words(first, int(numbers.max()))
        self._places = (numbers - first) >> 3
        self._counts = self._words.array.take(self._places)
        self._holders = self._counts_of_holders()

    def takes(self, matrix: Array) -> bool:
        """Whether rows like these fit in."""
        memory = self._memory
        return memory.dtype == matrix.dtype and memory.shape[1:] == matrix.shape[1:] and len(memory) >= len(matrix)

    def give(self, matrix: Array) -> GivenRows:
        """The rows of a matrix."""
        rows = len(matrix)
        self._memory[:rows] = matrix
        return GivenRows(self._column[:rows], self._objects)

    def is_free(self) -> bool:
        """Whether nothing refers to rows, their memory or the column, so that they can be reused."""
        if self._counts_of_holders() != self._holders:
            return False
        if _addresses(self._column) != self._addresses:
            self._column[:] = self._objects
        return bool((self._words.array.take(self._places) == self._counts).all())

    def _counts_of_holders(self) -> tuple[int, int]:
        # All rows' arrays, and what is made of them, refer to the array over the buffer.
        return sys.getrefcount(self._read_only), sys.getrefcount(self._column)


class _Words:
    """The memory between two addresses as words of 8 bytes; only those of live objects may be read.

    Attributes:
        array: of int64.
    """

    def __init__(self, first: int, last: int, *, writable: bool = False) -> None:
        self.__array_interface__ = {
            "data": (first, not writable),
            "shape": ((last - first) // 8 + 1,),
            "typestr": "<i8",
            "version": 3,
        }
        self.array: Array = numpy.asarray(self)


_Pages = dict[str, _ReusedViews]


def _is_poolable(matrix: Array) -> bool:
    """Whether rows are narrow, and hold values: texts, bytes and dates are references, which no buffer takes."""
    row_bytes = matrix[:1].nbytes
    if matrix.dtype.hasobject:
        return False
    return 0 < row_bytes <= _MOST_ROW_BYTES and len(matrix) * (_OBJECT_BYTES + row_bytes) <= _MOST_POOL_BYTES


def _counts_are_readable() -> bool:
    """Whether an object's first word is its reference count, as in CPython with its lock."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or sys.byteorder != "little":
        return False
    sample = numpy.zeros(1)
    words = _Words(id(sample), id(sample)).array
    before = int(words[0])
    another = sample
    return int(words[0]) == before + 1 and another is sample


def _addresses(column: Array) -> bytes:
    """The addresses of a contiguous column's objects."""
    return ctypes.string_at(column.ctypes.data, column.nbytes)
