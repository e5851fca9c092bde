"""`transformation_fn`: the user's function that changes rows, as pandas or as dicts, before the ranks get them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.decoding import choose_kept_dtype, describe_failure, to_lists
from spark_estimator.data.fields import Array
from spark_estimator.data.numbers import get_kind, to_numbers
from spark_estimator.data.row_calls import call_by_row, check_whole, to_rows
from spark_estimator.errors import DataError
from spark_estimator.log import get_logger

if TYPE_CHECKING:
    import pandas

_NAME = "transformation_fn"
_log = get_logger(__name__)


@dataclass(frozen=True)
class Shown:
    """A column of the function's result, as the first rows show it.

    Attributes:
        kind: of its values; of those inside, where they are arrays.
        is_array: they are.
        shape: of each row's, where arrays have more extents than one, or none.
    """

    kind: pyarrow.DataType
    is_array: bool
    shape: tuple[int, ...] | None

    @property
    def words(self) -> str:
        """Return the type in Spark's words, as ``simpleString`` has them."""
        return f"array<{get_kind(self.kind)}>" if self.is_array else get_kind(self.kind)

    @property
    def is_bytes(self) -> bool:
        """Return whether it holds arrays of small whole numbers: pixels."""
        return self.is_array and bool(pyarrow.types.is_uint8(self.kind))


class Takes(Enum):
    """The kind of argument of a transformation_fn.

    The annotation of its parameter decides, if there is one. Else a function that returns a dict for a dict is called
    for each row, as in Horovod: what changes its argument and returns it would also accept a frame, in which arrays
    would be reversed, shuffled or drawn for all rows together.
    """

    UNKNOWN = "It has not been called yet."
    FRAME = "A pandas.DataFrame of rows; it returns one."
    ROW = "A dict of one row; it returns one."


@dataclass(frozen=True)
class Transformation:
    """The function, and the schema of its result. It is sent to the ranks.

    Attributes:
        function: takes a pandas.DataFrame and returns one, with as many rows as it likes; or takes and returns a dict.
        edited: the columns that it is declared to change or add: (name, numpy type, shape, whether null is allowed).
        removed: columns that it is declared to receive and not to return.
        shown: by column, once the first rows have been seen.
    """

    function: Callable[[Any], Any]
    edited: tuple[tuple[str, str, tuple[int | None, ...], bool], ...] = ()
    removed: tuple[str, ...] = ()
    shown: Mapping[str, Shown] = field(default_factory=dict)
    takes: Takes = Takes.UNKNOWN

    def apply(
        self,
        columns: Mapping[str, pyarrow.Array | list[Array | None]],
        names: Sequence[str],
        row: int = 0,
        marker: str | None = None,
        by_name: bool = False,
    ) -> tuple[Transformation, dict[str, pyarrow.Array]]:
        """Call the function for some rows.

        Args:
            columns: by name; [rows] of numpy's arrays where a decoder made them.
            names: the columns that are wanted of its result.
            row: the number of the first one, for messages.
            marker: one of `names` that a function that takes rows need not return: it stays as it is.
            by_name: of such a function the names that it returns are wanted, in the first call.

        Returns:
            The transformation with what these rows have shown, and the columns.

        Raises:
            DataError: it failed, or its result cannot be used.
        """
        import pandas

        takes, result = self._call(columns, row)
        if takes is Takes.ROW:
            names = list(result.columns) if by_name and not self.shown else [name for name in names if name != marker]
            if marker is not None:
                names, result[marker] = [*names, marker], _make_series(columns[marker])
        count = len(next(iter(columns.values()), ()))
        lacking = next((name for name in names if name not in result.columns), None)
        if lacking is not None:
            raise DataError(
                f"{_NAME} returned no column {lacking!r}: it has {', '.join(map(repr, result.columns))}."
                + did_you_mean(lacking, result.columns)
            )
        twice = next((name for name in names if isinstance(result[name], pandas.DataFrame)), None)
        if twice is not None:
            raise DataError(f"{_NAME} returned {result[twice].shape[1]} columns named {twice!r}: return one.")
        if not self.shown and not len(result):
            raise DataError(
                f"{_NAME} returned no row for the first {count} rows, so that nothing is known of its columns."
            )
        shown = dict(self.shown)
        results = {}
        for name in names:
            try:
                shown[name], results[name] = _make_column(result[name], name, self.shown.get(name), row)
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
                before = f", which was {shown[name].words} in the first rows" if name in shown else ""
                raise DataError(f"column {name!r} of what {_NAME} returned{before}: {error}") from error
        if not self.shown:
            replace(self, takes=takes)._check(result)
        return replace(self, shown=shown, takes=takes), results

    def _call(
        self, columns: Mapping[str, pyarrow.Array | list[Array | None]], row: int
    ) -> tuple[Takes, pandas.DataFrame]:
        """Return the kind of the function's argument, and its result for some rows."""
        import pandas

        takes = _read_annotation(self.function) if self.takes is Takes.UNKNOWN else self.takes
        by_row = ""  # how a call with one row failed
        if takes is Takes.UNKNOWN:
            takes, by_row = _try_by_row(self.function, to_rows(_copy_columns(columns))[:1])
            if takes is Takes.ROW:
                self._warn_if_frames(_copy_columns(columns))
        if takes is Takes.ROW:
            return Takes.ROW, self._call_by_row(to_rows(columns), row)
        frame = _make_frame(columns)
        count = len(frame)
        try:
            result = self.function(frame)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() too: it would end the thread that reads rows, without a message
            text = f"{_NAME} failed on {count} rows, from row {row} of this rank's rows on: {describe_failure(error)}"
            if by_row:
                text = (
                    f"{text}. Before that, it was called with a dict of one row (which has "
                    f"{', '.join(map(repr, columns))}) and raised {by_row}"
                )
            raise DataError(text) from error
        if isinstance(result, pandas.DataFrame):
            return Takes.FRAME, result
        raise DataError(
            f"{_NAME} returns a pandas.DataFrame, or a dict for each row; it returned {type(result).__name__}."
        )

    def _warn_if_frames(self, columns: Mapping[str, pyarrow.Array | list[Array | None]]) -> None:
        """Log the choice for a function that takes rows and frames."""
        import pandas

        try:
            takes_frames = isinstance(self.function(_make_frame(columns)), pandas.DataFrame)
        except KeyboardInterrupt:
            raise
        except BaseException:  # as above
            return
        if takes_frames:
            _log.warning(
                "%s accepts a dict of one row and a pandas.DataFrame. It is called for each row, in each epoch, "
                "as in Horovod. To have it called once with frames, which is faster, annotate its parameter: "
                "def function(frame: pandas.DataFrame).",
                _NAME,
            )

    def _call_by_row(self, rows: list[dict[str, Any]], row: int) -> pandas.DataFrame:
        import pandas

        results = call_by_row(self.function, rows, self.removed, row)
        return pandas.DataFrame({name: pandas.Series(values) for name, values in results.items()})

    def _check(self, result: pandas.DataFrame) -> None:
        """Compare the result with the declared columns."""
        returned = next((name for name in self.removed if name in result.columns), None)
        if returned is not None:
            raise DataError(f"transformation_removed_fields lists {returned!r}, but {_NAME} returns it.")
        for name, dtype, shape, _ in self.edited:
            if name not in result.columns:
                raise DataError(f"transformation_edit_fields names {name!r}, which {_NAME} does not return.")
            values = [item for item in result[name] if item is not None]
            first = numpy.asarray(values[0] if values else 0)
            declared = numpy.dtype(dtype)
            if (
                first.dtype.kind in "biuf"
                and declared.kind in "biuf"
                and not numpy.can_cast(first.dtype, declared, "same_kind")
            ):
                raise DataError(
                    f"transformation_edit_fields declares {name!r} as {dtype}, but {_NAME} returned {first.dtype}."
                )
            fits = len(shape) == first.ndim and all(
                declared_extent in (None, extent) for declared_extent, extent in zip(shape, first.shape, strict=True)
            )
            if self.takes is Takes.ROW and not shape:
                continue  # Horovod's clients declare no shape for arrays that a function of rows returns
            if values and not fits:
                raise DataError(
                    f"transformation_edit_fields declares {name!r} with shape {list(shape)}, but {_NAME} returned "
                    f"{list(first.shape)}."
                )


def _read_annotation(function: Callable[[Any], Any]) -> Takes:
    """Return the kind of argument that the annotation of a function's first parameter names."""
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return Takes.UNKNOWN
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return Takes.UNKNOWN
    kind = parameter.annotation
    name = kind if isinstance(kind, str) else getattr(typing.get_origin(kind) or kind, "__name__", "")
    name = name.partition("[")[0].rpartition(".")[2]
    if name == "DataFrame":
        return Takes.FRAME
    return Takes.ROW if name.lower() in ("dict", "mapping", "mutablemapping") else Takes.UNKNOWN


def _copy_columns(
    columns: Mapping[str, pyarrow.Array | list[Array | None]],
) -> dict[str, pyarrow.Array | list[Array | None]]:
    """Return columns for a trial: the function may write to the arrays that a decoder has made."""
    return {
        name: [None if array is None else array.copy() for array in column] if isinstance(column, list) else column
        for name, column in columns.items()
    }


def _make_frame(columns: Mapping[str, pyarrow.Array | list[Array | None]]) -> pandas.DataFrame:
    import pandas

    check_whole(columns)
    return pandas.DataFrame({name: _make_series(column) for name, column in columns.items()})


def _try_by_row(function: Callable[[Any], Any], rows: list[dict[str, Any]]) -> tuple[Takes, str]:
    """Return ROW for a function that returns a dict for a dict of one row; else UNKNOWN, and how the call failed."""
    try:
        by_row = bool(rows) and isinstance(function(rows[0]), Mapping)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit() too, as above
        return Takes.UNKNOWN, f"{type(error).__name__}: {error}"
    return Takes.ROW if by_row else Takes.UNKNOWN, ""


def _make_series(column: pyarrow.Array | list[Array | None]) -> Any:
    """Return a column as the function gets it: arrays as numpy arrays, vectors too, decimals as floats."""
    if isinstance(column, list):
        return column
    kind = column.type
    if pyarrow.types.is_decimal(kind) or (pyarrow.types.is_struct(kind) and get_kind(kind) == "vector"):
        column = to_numbers(column)
    return column.to_pandas()


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple, numpy.ndarray)) or (hasattr(value, "__array__") and numpy.ndim(value) > 0)


def _make_column(values: pandas.Series, name: str, shown: Shown | None, row: int) -> tuple[Shown, pyarrow.Array]:
    """Return a column of the result as Arrow's, of the type that the first rows have shown.

    Args:
        row: the number of the first row that was passed to the function, for messages.
    """
    if (values.dtype == object and any(map(_is_array, values))) if shown is None else shown.is_array:
        return _make_arrays(values, name, shown)
    # First to the type of its values, then to the target type: Arrow does not convert Decimals to floats, for example.
    array = pyarrow.array(values, from_pandas=True)
    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    if pyarrow.types.is_decimal(array.type):
        array = to_numbers(array)
    if shown is None:
        kind = array.type
        if pyarrow.types.is_null(kind):
            raise DataError(f"column {name!r} of what {_NAME} returned holds null alone in the first rows.")
        if pyarrow.types.is_integer(kind):
            kind = pyarrow.int64()
        elif pyarrow.types.is_float16(kind):
            kind = pyarrow.float32()
        shown = Shown(kind, False, None)
    if array.null_count < len(array) and _find_family(array.type) != _find_family(shown.kind):
        index = int(numpy.asarray(array.is_valid()).argmax())
        raise DataError(
            f"{_NAME} returned {array[index].as_py()!r} in column {name!r}, in row {index} of its result for the rows "
            f"from row {row} of this rank's rows on; the first rows held {shown.words}. Return one type for all rows."
        )
    return shown, array.cast(shown.kind)


def _find_family(kind: pyarrow.DataType) -> str:
    """Return the family of a type. Types of one family are cast to each other; Arrow casts others, too: it reads
    numbers out of texts.
    """
    if pyarrow.types.is_dictionary(kind):
        return _find_family(kind.value_type)
    if pyarrow.types.is_boolean(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind):
        return "number"
    if pyarrow.types.is_date(kind) or pyarrow.types.is_timestamp(kind):
        return "time"
    return get_kind(kind)


def _make_arrays(values: pandas.Series, name: str, shown: Shown | None) -> tuple[Shown, pyarrow.Array]:
    subject = f"{_NAME}, in column {name!r},"
    plain = next(
        (value for value in values if not _is_array(value) and value is not None and value == value), None
    )  # NaN is null
    if plain is not None:
        raise DataError(f"{subject} returned {plain!r} where other rows have arrays.")
    result = [numpy.asarray(value) if _is_array(value) else None for value in values]
    present = [item for item in result if item is not None]
    if shown is None:
        full = [column for column in present if column.size]
        if not full:
            raise DataError(f"{subject} returned empty arrays alone for the first rows.")
        dtype = choose_kept_dtype(numpy.result_type(*{item.dtype for item in full}), subject)
        shape = full[0].shape if full[0].ndim > 1 else None
        shown = Shown(pyarrow.from_numpy_dtype(numpy.dtype(dtype)), True, shape)
    dtype = str(numpy.dtype(shown.kind.to_pandas_dtype()))
    wrong = next(
        (column for column in present if column.size and not numpy.can_cast(column.dtype, dtype, "same_kind")), None
    )
    if wrong is not None:
        raise DataError(f"{subject} returned an array of {wrong.dtype}, and of {dtype} in the first rows.")
    unequal = next(
        (column for column in present if column.shape != shown.shape and (shown.shape or column.ndim != 1)), None
    )
    if unequal is not None:
        raise DataError(
            f"{subject} returned an array of shape {list(unequal.shape)}, and {list(shown.shape or (-1,))} in the "
            "first rows: all rows need one."
        )
    valid = pyarrow.array([item is not None for item in result], pyarrow.bool_())
    if shown.shape is not None:
        matrix = numpy.zeros((len(result), *shown.shape), dtype)
        for index, entry in enumerate(result):
            if entry is not None:
                matrix[index] = entry
        return shown, to_lists(matrix, valid)
    offsets = numpy.cumsum([0, *(0 if item is None else len(item) for item in result)])
    flat = numpy.concatenate([numpy.empty(0, dtype), *(column.astype(dtype, copy=False) for column in present)])
    lists = pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets, pyarrow.int64()), pyarrow.array(flat))
    if len(present) == len(result):
        return shown, lists
    return shown, pyarrow.compute.if_else(valid, lists, pyarrow.scalar(None, lists.type))
