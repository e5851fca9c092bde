"""Fields: the columns of an Arrow batch as one matrix."""

from __future__ import annotations

import math

import numpy
import pyarrow
import pytest

from spark_estimator.data.fields import Field, find_widths, is_list, make_matrix
from spark_estimator.errors import DataError

X = Field(("x", "y"), ("c0", "c1"), (1, 2), "float32", (3,))
LABEL = Field(("label",), ("c2",), (1,), "int64")


def batch(**columns: object) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def test_columns_stand_side_by_side() -> None:
    rows = batch(c0=[1.0, 2.0], c1=[[3.0, 4.0], [5.0, 6.0]])
    assert make_matrix(rows, X).tolist() == [[1, 3, 4], [2, 5, 6]]
    assert make_matrix(rows.slice(1), X).tolist() == [[2, 5, 6]], "a slice has offsets of its own"


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("second", ["same", "another type", "boolean"])
def test_scalars_of_any_types_stand_side_by_side(dtype: str, second: str) -> None:
    field = Field(("x", "y", "z"), ("c0", "c1", "c2"), (1, 1, 1), "float32", (3,))
    numbers = numpy.arange(10)
    others = {"same": numbers[::-1].astype(dtype), "another type": numbers[::-1] * 2.0, "boolean": numbers % 3 == 0}
    rows = batch(c0=numbers.astype(dtype), c1=others[second], c2=(numbers + 1).astype(dtype))
    expected = numpy.stack([numbers, others[second], numbers + 1], axis=1).astype("float32")
    for part in (slice(0, 10), slice(3, 7), slice(10, 10)):
        matrix = make_matrix(rows.slice(part.start, part.stop - part.start), field)
        assert matrix.dtype == "float32" and matrix.flags.c_contiguous and matrix.shape == expected[part].shape
        assert numpy.array_equal(matrix, expected[part])


def test_a_column_that_is_named_twice_and_a_null_among_numbers() -> None:
    twice = Field(("x", "x", "y"), ("c0", "c0", "c1"), (1, 1, 1), "float32", (3,))
    assert make_matrix(batch(c0=[1.0], c1=[3.0]), twice).tolist() == [[1, 1, 3]]
    numbers = Field(("x", "y"), ("c0", "c1"), (1, 1), "int64", (2,))
    with pytest.raises(DataError, match="'y' holds null in row 8"):
        make_matrix(batch(c0=[1, 2], c1=[3, None]), numbers, row=7)
    with pytest.raises(DataError, match=r"'y' holds whole numbers .*row 8 .*2\.5"):
        make_matrix(batch(c0=[1.0, 2.0], c1=[3.0, 2.5]), numbers, row=7)


def test_a_field_has_as_many_values_as_its_shape() -> None:
    with pytest.raises(ValueError, match=r"x, y has 3 values a row.*\[2, 2\]"):
        Field(("x", "y"), ("c0", "c1"), (1, 2), "float32", (2, 2))


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"c2": [1, None]}, LABEL, r"'label' holds null in row 8"),
        ({"c2": [1.0, math.nan]}, LABEL, r"'label' holds NaN, pandas' null of whole numbers, in row 8 .*nulls='drop'"),
        ({"c2": [1.0, math.inf]}, LABEL, r"whole numbers in the first rows.*row 8 .*inf"),
        ({"c2": [1.0, 2.5]}, LABEL, r"whole numbers in the first rows.*row 8 .*2\.5"),
        ({"c0": [1.0, 2.0], "c1": [[1.0, 2.0], [1.0]]}, X, r"'y' has 2 values in the first rows, but 1 in row 8"),
        ({"c0": [1.0, 2.0], "c1": [[1.0, 2.0], [1.0, None]]}, X, r"'y' holds null inside of the array in row 8"),
        (
            {"c0": [1.0, 2.0], "c1": [[1.0, 2.0], None]},
            X,
            r"'y' holds null in row 8 .*functions\.coalesce\(.*nulls='drop'\.\n",
        ),
        (
            {"c0": [1.0, None], "c1": [[1.0, 2.0]] * 2},
            X,
            r"'x' holds null in row 8 .*df\.fillna.*such as nulls=0\.0\.\n",
        ),
        ({"c0": [1.0, 2.0], "c1": [3.0, 4.0]}, X, r"'y' holds single values in this rank's rows, .* array of 2\.\n"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, object], field: Field, words: str) -> None:
    with pytest.raises(DataError, match=words):
        make_matrix(batch(**columns), field, row=7)


def test_shorter_arrays_are_filled_up() -> None:
    """Values at their positions, of any type; an error is found in its row, though rows differ in length."""
    field = Field(("v", "w"), ("c0", "c1"), (3, 1), "int64", (4,), (-1.0, None))
    rows = batch(c0=[[9], [1.0, 2.0, 3.0], [], [4.0]], c1=[5, 6, 7, 8]).slice(1)
    assert make_matrix(rows, field).tolist() == [[1, 2, 3, 6], [-1, -1, -1, 7], [4, -1, -1, 8]]
    assert make_matrix(rows, field).dtype == "int64"
    for wrong, words in (
        ([[1], [2, 3], [4, 5, 6, 7]], "'v' has 4 values in row 12 of .* room for 3: padding fills .* input_shapes"),
        ([[1], [2, None]], "'v' holds null inside of the array in row 11"),
        ([[1.0], [], [2.0, 2.5]], r"row 12 of this rank's rows holds .*2\.5"),
        ([[1], None], "'v' holds null in row 11"),
    ):
        with pytest.raises(DataError, match=words):
            make_matrix(batch(c0=wrong, c1=[1] * len(wrong)), field, row=10)


def test_widths() -> None:
    rows = batch(a=[1, 2], b=[[1], [2]], c=[[1], [2, 3]])
    assert find_widths(rows, ["a", "b", "c"]) == [1, 1, None]


def test_sizes_of_a_row() -> None:
    image = Field(("image",), ("c0",), (6,), "float32", (2, 3), stored="uint8")
    assert (image.width, image.row_bytes, image.stored_dtype) == (6, 6, "uint8")
    assert (X.name, X.width, X.row_bytes, X.stored_dtype) == ("x, y", 3, 12, "float32")


def test_pixels_out_of_range_are_refused() -> None:
    pixels = Field(("image",), ("c0",), (2,), "float32", (2,), stored="uint8")
    assert make_matrix(batch(c0=[[0, 255]]), pixels).dtype == numpy.uint8
    with pytest.raises(DataError, match=r"'image' holds pixels, 0 to 255, .* row 4 of this rank's rows holds 256"):
        make_matrix(batch(c0=[[0, 255], [256, 0]]), pixels, row=3)


def test_all_kinds_of_lists() -> None:
    small = pyarrow.int8()
    assert all(map(is_list, (pyarrow.list_(small), pyarrow.large_list(small), pyarrow.list_(small, 3))))
    assert not is_list(small) and not is_list(pyarrow.struct([("a", small)]))


def test_an_error_names_the_rows_and_the_remedy() -> None:
    with pytest.raises(DataError) as caught:
        make_matrix(batch(c2=[1, None]), LABEL, source="the first 2 rows")
    assert str(caught.value).startswith("column 'label' holds null in row 1 of the first 2 rows. Filter these rows ")
    assert "set nulls='drop' or a number, such as nulls=0.0." in str(caught.value)
