"""From rows to fields: decoders, the transformation, marks for validation, nulls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_estimator.data.categories import Vocabulary
from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Array, Field
from spark_estimator.data.row_encoder import RowEncoder, find_dtypes
from spark_estimator.data.transformation import Transformation
from spark_estimator.errors import DataError


def batch(**columns: object) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def test_columns_are_read_once_each() -> None:
    assert RowEncoder(("x", "y", "x"), marker="y").read == ["x", "y"]
    encoder = RowEncoder(("x",), marker="held", transformation_columns=("word", "held", "word"))
    assert encoder.read == ["word", "held"]


def test_columns_get_the_names_of_fields() -> None:
    rows = RowEncoder(("b", "a", "b"), marker="held").to_numbers(batch(a=[1, 2], b=[0.5, 1.5], held=[1, 0]))
    assert rows.to_pydict() == {"c0": [0.5, 1.5], "c1": [1, 2], "c2": [0.5, 1.5], "marker": [True, False]}


def test_marks_other_than_zero_and_one_are_null() -> None:
    rows = RowEncoder(("a",), marker="held").to_numbers(batch(a=[1, 2, 3, 4], held=[0, 1, 2, None]))
    assert rows.column("marker").to_pylist() == [False, True, None, None]


def test_nulls_are_handled_after_the_functions() -> None:
    """A function may fill them; rows that it leaves with null are dropped."""

    def fill_some(frame: Any) -> Any:
        frame["a"] = frame["a"].fillna(9).where(frame["a"] != 2)
        return frame

    encoder = RowEncoder(("a",), nulls="drop", transformation=Transformation(fill_some))
    assert encoder.to_numbers(batch(a=[1.0, 2.0, None])).column("c0").to_pylist() == [1.0, 9.0]


def test_the_transformation_receives_decoded_arrays() -> None:
    decoder = Decoder("image", lambda content: numpy.frombuffer(content, numpy.uint8))

    def mean(frame: Any) -> Any:
        frame["mean"] = [0.0 if image is None else image.mean() for image in frame["image"]]
        return frame[["mean"]]

    encoder = RowEncoder(
        ("mean",), decoders={"image": decoder}, transformation=Transformation(mean), transformation_columns=("image",)
    )
    known, columns = encoder.apply(batch(image=[b"\x01\x03", None], other=[1, 2]))
    assert columns["mean"].to_pylist() == [2.0, 0.0]
    assert known.decoders["image"].shape == (2,)
    assert known.transformation is not None and known.transformation.shown["mean"].words == "double"


def test_rows_are_worked_on_in_pieces_and_errors_have_their_numbers() -> None:
    def refuse(content: bytes) -> Any:
        return numpy.zeros(1 if content == b"a" else 2)

    encoder = RowEncoder(("b",), decoders={"b": Decoder("b", refuse, shape=(1,), dtype="float32")})
    pieces = encoder.encode_batches([batch(b=[b"a"] * 5), batch(b=[]), batch(b=[b"a"] * 3)], 2)
    assert [piece.num_rows for piece in pieces] == [2, 2, 1, 2, 1]
    with pytest.raises(DataError, match=r"in row 6 of this rank's rows"):
        list(encoder.encode_batches([batch(b=[b"a"] * 5), batch(b=[b"a", b"x"])], 2))


def test_types_and_sizes_of_fields() -> None:
    x = Field(("a", "b"), ("c1", "c2"), (1, 3), "float64", (4,))
    y = Field(("y",), ("c0",), (1,), "int64")
    assert find_dtypes([x, y]) == ["int64", "float64", "float64"]
    assert RowEncoder((), (y,)).batch_rows == 1 << 16
    wide = Field(("v",), ("c0",), (1 << 20,), "float32", (1 << 20,))
    assert (RowEncoder((), (wide,)).batch_rows, RowEncoder((), (wide,) * 9).batch_rows) == (4, 1), (
        "16 MiB, but one row at least"
    )


def test_columns_that_were_sent_side_by_side_are_taken_apart() -> None:
    """By the numbers of the columns in each array, also of a slice, which has other offsets."""
    whole, text = pyarrow.array([1, None, 3]), pyarrow.array(["a", "b", None])
    floats = pyarrow.array([[0.5, None], [1.5, 2.5], [3.5, 4.5]], pyarrow.list_(pyarrow.float32()))
    names = ("c0", "c1", "c2", "c3")

    def columns(arrays: list[pyarrow.Array], packed: tuple[tuple[int, ...], ...]) -> list[list[Any]]:
        encoder = RowEncoder(names[: sum(map(len, packed))], packed=packed, marker="held")
        rows = encoder.to_numbers(encoder.make_batch([*arrays, pyarrow.array([1, 0, 1][: len(arrays[0])])]))
        assert rows.schema.names[-1] == "marker" and rows.column("marker").to_pylist()[:2] == [True, False]
        return [column.to_pylist() for column in rows.columns[:-1]]

    arrays = [whole.slice(1), floats.slice(0, 2), text.slice(1)]
    assert columns(arrays, ((1,), (0, 3), (2,))) == [[0.5, 1.5], [None, 3], ["b", None], [None, 2.5]]
    assert columns([floats], ((0, 1),))[1] == [None, 2.5, 4.5]
    assert RowEncoder(("a",)).make_batch([whole]).to_pydict() == {"a": [1, None, 3]}


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("rows", [0, 5])
def test_packed_rows_become_matrices_without_a_copy(rows: int, offset: int) -> None:
    """Where an array has a field's columns alone, in its order. Others are copied; of other types, converted."""
    floats = numpy.arange(30 * 8, dtype=numpy.float32).reshape(8, 30)
    doubles = numpy.arange(8 * 2, dtype=numpy.float64).reshape(8, 2)
    pixels = pyarrow.array([[number, number] for number in range(8)], pyarrow.list_(pyarrow.float32()))
    arrays = [
        pyarrow.array(list(each), pyarrow.list_(pyarrow.from_numpy_dtype(each.dtype))) for each in (floats, doubles)
    ]
    batch = [array.slice(offset, rows) for array in (*arrays, pixels)]
    names = tuple(f"c{number}" for number in range(33))

    def encode(fields: list[Field]) -> tuple[RowEncoder, pyarrow.RecordBatch, list[Array]]:
        encoder = RowEncoder(names, tuple(fields), packed=(tuple(range(30)), (30, 31), (32,)))
        batch_of_spark = encoder.make_batch(batch)
        made = encoder.to_numbers(batch_of_spark)
        return encoder, made, encoder.make_matrices(made)

    def scalars(numbers: list[int], dtype: str) -> Field:
        columns = tuple(names[number] for number in numbers)
        return Field(columns, columns, (1,) * len(columns), dtype, (len(columns),))

    images = Field(("v",), ("c32",), (2,), "float32", (2,))
    _, made, (x, y, z) = encode([scalars(list(range(30)), "float32"), scalars([30, 31], "float64"), images])
    assert made.schema.names == ["packed0", "packed30", "c32"]
    assert (x == floats[offset:][:rows]).all() and (y == doubles[offset:][:rows]).all() and z.shape == (rows, 2)
    if rows:
        memory = arrays[0].values.to_numpy()
        assert numpy.shares_memory(x, memory) and not y.flags.owndata
    fields = [scalars(list(range(1, 30)), "float32"), scalars([0], "float32"), scalars([7, 2, 9], "float32")]
    _, made, parts = encode(fields)
    assert "packed0" in made.schema.names
    for part, places in zip(parts, (slice(1, 30), slice(0, 1), [7, 2, 9]), strict=True):
        assert part.flags.c_contiguous and (part == floats[offset:][:rows][:, places]).all()
    _, made, (mixed, whole) = encode([scalars([0, 30], "float32"), scalars([1, 2], "int64")])
    assert made.schema.names == list(names) and mixed.dtype == numpy.float32 and whole.dtype == numpy.int64
    assert whole.tolist() == floats[offset:][:rows][:, 1:3].astype(int).tolist()


def test_arrays_side_by_side_in_one_field_beside_packed_scalars() -> None:
    names = ("v", "w", "y", "weight")
    fields = [
        Field(("v", "w"), ("c0", "c1"), (2, 2), "float32", (4,)),
        Field(("y",), ("c2",), (1,), "float32"),
        Field(("weight",), ("c3",), (1,), "float32"),
    ]
    encoder = RowEncoder(names, tuple(fields)).by_position(packed=((0,), (1,), (2, 3)))
    arrays = [pyarrow.array([row], pyarrow.list_(pyarrow.float32())) for row in ([1, 2], [3, 4], [5, 6])]
    rows = encoder.to_numbers(encoder.make_batch(arrays))
    assert rows.schema.names == ["c0", "c1", "packed2"]
    assert [matrix.tolist() for matrix in encoder.make_matrices(rows)] == [[[1, 2, 3, 4]], [[5]], [[6]]]


def test_marks_and_categories_of_packed_rows() -> None:
    """Marks go beside rows that stay together; ids are looked up column by column."""
    numbers = pyarrow.array([[7, 1], [9, 0]], pyarrow.list_(pyarrow.int64()))
    field = Field(("a", "b"), ("c0", "c1"), (1, 1), "int64", (2,))
    encoder = RowEncoder(("c0", "c1"), (field,), packed=((0, 1),), marker="held")
    batch_of_spark = encoder.make_batch([numbers, pyarrow.array([1, 0])])
    rows = encoder.to_numbers(batch_of_spark)
    assert rows.schema.names == ["packed0", "marker"] and rows.column("marker").to_pylist() == [True, False]
    assert encoder.make_matrices(rows)[0].tolist() == [[7, 1], [9, 0]]
    with_ids = replace(encoder, categories={"c0": Vocabulary("a", (9, 7))})
    assert with_ids.encode(batch_of_spark)[0].tolist() == [[2, 1], [1, 0]]


def test_an_error_names_the_scalar_of_a_packed_column() -> None:
    """Scalars of several columns in one array."""
    encoder = RowEncoder(("c0", "c1"), (Field(("a", "b"), ("c0", "c1"), (1, 1), "int64", (2,)),), packed=((0, 1),))

    def encode(rows: list[list[float | None]]) -> Any:
        return encoder.encode(encoder.make_batch([pyarrow.array(rows)]))[0].tolist()

    assert encode([[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="column 'b' holds null in row 1 "):
        encode([[1, 2], [3, None]])
    with pytest.raises(DataError, match=r"column 'a' holds whole numbers .*row 1 .*holds 0\.5"):
        encode([[1.0, 2.0], [0.5, 4.0]])


def doubled(frame: Any) -> Any:
    """Two rows of each, ten times as large."""
    import pandas

    return pandas.concat([frame, frame]).assign(x=lambda rows: rows.x * 10)


def divided(encoder: RowEncoder, rows: pyarrow.RecordBatch, most_rows: int) -> tuple[list[Any], list[Any]]:
    """The values of c0 in the rows to train on, and in those for validation."""
    values: tuple[list[Any], list[Any]] = ([], [])
    for part in encoder.encode_batches([rows], most_rows):
        for value, mark in zip(part.column("c0").to_pylist(), part.column("marker").to_pylist(), strict=True):
            values[mark].append(value)
    return values


def test_rows_for_validation_can_stay_as_they_are() -> None:
    rows = batch(x=[1.0, 2.0, 3.0, 4.0], held=[0, 1, 0, 1])
    encoder = RowEncoder(("x",), marker="held", transformation=Transformation(doubled), transforms_marked=False)
    assert divided(encoder, rows, 4) == ([10.0, 30.0, 10.0, 30.0], [2.0, 4.0])
    assert divided(encoder, rows, 1) == ([10.0, 10.0, 30.0, 30.0], [2.0, 4.0])
    assert divided(replace(encoder, transforms_marked=True), rows, 4)[1] == [20.0, 40.0] * 2
    assert encoder.untransformed.to_numbers(rows).to_pydict() == {"c0": [1.0, 2.0, 3.0, 4.0]}
    with pytest.raises(DataError, match="the column 'held' of validation marks holds null"):
        divided(encoder, batch(x=[1.0], held=[None]), 4)


def test_a_share_of_rows_is_drawn_by_their_values() -> None:
    """Before the transformation, so that no copy of a row for validation is trained on."""
    numbers = [float(number) for number in range(4000)]
    rows = batch(x=numbers, v=[[number] for number in numbers], text=[str(number) for number in numbers])
    encoder = RowEncoder(
        ("x",),
        transformation=Transformation(doubled),
        transformation_columns=("x", "v", "text"),
        transforms_marked=False,
        held_share=0.25,
    )
    train, held = divided(encoder, rows, 4000)
    assert 900 < len(held) < 1100 and len(train) == 2 * (4000 - len(held))
    assert sorted({value / 10 for value in train} | set(held)) == numbers
    backwards = rows.take(pyarrow.array(range(3999, -1, -1)))
    assert sorted(divided(encoder, backwards, 7)[1]) == held


NUMBERS = st.floats(-1e6, 1e6, width=32) | st.integers(-9, 9).map(float) | st.just(float("nan"))
WHOLE = st.integers(-(1 << 40), 1 << 40)


def lists_of_rows() -> st.SearchStrategy[list[Any]]:
    """Rows of two columns of floats and two of whole numbers, in most of which nothing is null."""
    full, some = (NUMBERS, NUMBERS, WHOLE, WHOLE), (st.none() | NUMBERS, NUMBERS, WHOLE, st.none() | WHOLE)
    return st.one_of(st.lists(st.tuples(*kinds), max_size=8) for kinds in (full, some))


@settings(max_examples=120, deadline=None)
@given(
    lists_of_rows(),
    st.sampled_from(["drop", 3, "error"]),
    st.sampled_from([((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 2), (3, 1)), ((0, 3), (2, 1))]),
    st.sampled_from(["float32", "float64", "int64"]),
    st.integers(0, 2),
)
def test_columns_that_spark_has_packed_become_the_same_matrices(
    rows: list[Any], policy: Any, fields: Any, dtype: str, start: int
) -> None:
    """Scalars of one type side by side in an array, also with nulls, which each column's own policy decides about."""
    kinds = [pyarrow.float32(), pyarrow.float32(), pyarrow.int64(), pyarrow.int64()]
    columns = [
        pyarrow.array([row[number] for row in rows], kind, from_pandas=False) for number, kind in enumerate(kinds)
    ]
    x, y = (
        Field(tuple("anbm"[number] for number in pair), tuple(f"c{number}" for number in pair), (1, 1), kind, (2,))
        for pair, kind in zip(fields, (dtype, "int64"), strict=True)
    )
    order = [0, 2, 1, 3]
    encoder = RowEncoder(("a", "n", "b", "m"), (x, y), nulls={"a": policy, "n": policy, "b": "error", "m": 7})
    plain = pyarrow.RecordBatch.from_arrays([columns[number] for number in order], names=list("anbm"))
    arrays = []
    for first, second in ((columns[0], columns[1]), (columns[2], columns[3])):
        pairs = list(zip(first.to_pylist(), second.to_pylist(), strict=True))
        arrays.append(pyarrow.array(pairs, pyarrow.list_(first.type)))
    packed = encoder.by_position(packed=((0, 2), (1, 3)))
    batch_of_spark = packed.make_batch(arrays).slice(start)
    assert_alike(lambda: encoder.encode(plain.slice(start)), lambda: packed.encode(batch_of_spark))


def assert_alike(first: Callable[[], list[Any]], second: Callable[[], list[Any]]) -> None:
    """The same bits, or the same error."""
    results: list[Any] = []
    for call in (first, second):
        try:
            results.append([matrix.tobytes() for matrix in call()])
        except DataError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_a_number_for_nulls_leaves_arrays_and_is_of_the_tensor_s_type() -> None:
    """Also in a batch that has nothing but nulls, which do not show whether a column has arrays."""
    x = Field(("a",), ("c0",), (1,), "int64")
    v = Field(("v",), ("c1",), (2,), "float32", (2,))
    encoder = RowEncoder(("a", "v"), (x, v), nulls=0.5)
    made = encoder.to_numbers(batch(a=[None, 4], v=[[1.0, 2.0], None]))
    assert made.to_pydict() == {"c0": [0, 4], "c1": [[1.0, 2.0], None]}
    made = encoder.to_numbers(batch(a=pyarrow.nulls(2), v=pyarrow.nulls(2)))
    assert made.to_pydict() == {"c0": [0, 0], "c1": [None, None]}


def test_a_dropped_row_takes_all_of_its_columns_along() -> None:
    x, y = Field(("a",), ("c0",), (1,), "float32"), Field(("b",), ("c1",), (1,), "int64")
    encoder = RowEncoder(("a", "b"), (x, y), nulls={"a": "drop"})
    first, second = encoder.encode(batch(a=[1.0, None, float("nan"), 4.0], b=[1, 2, 3, 4]))
    assert first.tolist() == [[1.0], [4.0]] and second.tolist() == [[1], [4]]
    assert encoder.encode(batch(a=[float("nan"), 2.0], b=[1, 2]))[1].tolist() == [[2]], "NaN alone drops a row, too"


def test_categories_are_looked_up_before_nulls_drop_rows() -> None:
    """Null is a category, with id 0; so it drops no row."""
    encoder = RowEncoder(
        ("tree", "a"),
        (Field(("tree",), ("c0",), (1,), "int64"), Field(("a",), ("c1",), (1,), "float32")),
        nulls="drop",
        categories={"tree": Vocabulary("tree", ("ash", "oak"))},
    )
    ids, _ = encoder.encode(batch(tree=["oak", None, "elm", "ash"], a=[1.0, 2.0, 3.0, None]))
    assert ids.tolist() == [[2], [0], [0]]


def test_arrays_that_are_decoded_already_pass_by() -> None:
    decoder = Decoder("v", lambda content: numpy.frombuffer(content, numpy.uint8), shape=(2,), dtype="uint8")
    field = Field(("v",), ("c0",), (2,), "float32", (2,), stored="uint8")
    encoder = RowEncoder(("v",), (field,), decoders={"v": decoder})
    for rows in (batch(v=[b"\x01\x02"]), batch(v=[[1, 2]])):
        (matrix,) = encoder.encode(rows)
        assert matrix.tolist() == [[1, 2]] and matrix.dtype == numpy.uint8


@pytest.mark.parametrize("kind", [pyarrow.large_binary(), pyarrow.binary(2), pyarrow.binary_view()], ids=str)
def test_prediction_decodes_bytes_of_every_type(kind: pyarrow.DataType) -> None:
    """numpy would make numbers of them: 12.0 of b"12"."""
    from spark_estimator.estimators.inference.features import read_features

    field = Field(("img",), ("c0",), (1,), "float32", (1,))
    decoder = Decoder.from_training("img", lambda content: numpy.frombuffer(content, numpy.uint8)[:1], "(1,)uint8")
    encoder = RowEncoder(("c0",), (field,), decoders={"c0": decoder})
    batch = read_features({"img": pyarrow.array([b"12", b"34"], kind)}, encoder, "UTC")
    assert encoder.encode(batch)[0].tolist() == [[49.0], [51.0]]


def test_a_scalar_that_is_packed_beside_an_array_of_the_same_field() -> None:
    packed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([1.0, 2.0, 3.0, 4.0]), 2)
    arrays = pyarrow.array([[5.0, 6.0], [7.0, 8.0]])
    field = Field(("a", "b", "v"), ("c0", "c1", "c2"), (1, 1, 2), "float64", (4,))
    for packs in (((0, 1), (2,)), ()):
        encoder = RowEncoder(("c0", "c1", "c2"), (field,), packed=packs)
        columns = [packed, arrays] if packs else [pyarrow.array([1.0, 3.0]), pyarrow.array([2.0, 4.0]), arrays]
        matrix = encoder.encode(encoder.make_batch(columns))[0]
        assert matrix.tolist() == [[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]


def test_mixed_columns_of_more_rows_than_a_block() -> None:
    rows = 4096 + 5
    field = Field(("n", "x"), ("c0", "c1"), (1, 1), "float32", (2,))
    encoder = RowEncoder(("c0", "c1"), (field,))
    numbers = numpy.arange(rows)
    batch = pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(numbers, pyarrow.int32()), pyarrow.array(-numbers / 2, pyarrow.float32())], names=["c0", "c1"]
    )
    assert (encoder.encode(batch)[0] == numpy.stack([numbers, -numbers / 2], 1)).all()
