"""`TransformSpec` in readers and loaders: what the function gets, what it may return, and what is refused."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import BatchedDataLoader, DataLoader, TransformSpec, Unischema, UnischemaField
from spark_estimator.data.petastorm import make_batch_reader as read_batches
from spark_estimator.data.petastorm import make_reader as read_rows
from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.transform import edit_field, transform_schema

IN_ORDER = {"shuffle_row_groups": False, "reader_pool_type": "dummy"}


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Ten rows in row groups of four: n; x with a null; bytes of n; arrays of n % 3 + 1 values; pairs."""
    table = pyarrow.table(
        {
            "n": pyarrow.array(range(10), pyarrow.int64()),
            "x": pyarrow.array([None if n == 5 else n / 2 for n in range(10)], pyarrow.float32()),
            "content": [bytes([n] * 4) for n in range(10)],
            "ragged": [[float(n)] * (n % 3 + 1) for n in range(10)],
            "pair": pyarrow.array([[n, -n] for n in range(10)], pyarrow.list_(pyarrow.float32())),
            "true": [n % 2 == 0 for n in range(10)],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    return str(tmp_path)


def decoded(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Images of the bytes, as notebooks make them."""
    frame["image"] = frame["content"].map(lambda content: numpy.frombuffer(content, numpy.uint8).reshape(2, 2) / 255)
    return frame.drop(columns=["content"])


def test_bytes_become_images(mixed: str) -> None:
    spec = TransformSpec(decoded, [("image", numpy.float64, (2, 2), False)], removed_fields=["content"])
    with read_batches(mixed, ["n", "content"], transform_spec=spec, **IN_ORDER) as reader:
        assert list(reader.schema.fields) == ["n", "image"] and reader.schema.image.shape == (2, 2)
        batches = list(reader)
    assert [batch.image.shape for batch in batches] == [(4, 2, 2), (4, 2, 2), (2, 2, 2)]
    with DataLoader(read_batches(mixed, ["n", "content"], transform_spec=spec, num_epochs=2), 7) as loader:
        rows = list(loader)
    assert [len(batch["n"]) for batch in rows] == [7, 7, 6]
    for batch in rows:
        assert torch.equal(batch["image"], batch["n"].double().reshape(-1, 1, 1).expand(-1, 2, 2) / 255)


def padded(frame: pandas.DataFrame) -> pandas.DataFrame:
    frame["ragged"] = frame["ragged"].map(lambda values: numpy.pad(values, (0, 3 - len(values))))
    return frame.fillna({"x": -1.0})


def test_nulls_and_arrays_of_different_lengths_reach_the_function(mixed: str) -> None:
    spec = TransformSpec(padded, [edit_field("ragged", numpy.float64, (3,)), edit_field("x", numpy.float32, ())])
    with DataLoader(read_batches(mixed, ["n", "x", "ragged"], transform_spec=spec, **IN_ORDER), 10) as loader:
        (batch,) = loader
    assert batch["x"][5] == -1 and batch["ragged"].shape == (10, 3) and batch["ragged"][2].tolist() == [2, 2, 2]
    with pytest.raises(DataError, match="column 'ragged' holds arrays of different lengths"):
        DataLoader(read_batches(mixed, ["n", "ragged"]), 4)
    with pytest.raises(DataError, match=r"column 'ragged' holds arrays of different shapes: \[1\], \[2\], \[3\]"):
        next(read_batches(mixed, ["ragged"], **IN_ORDER))
    with pytest.raises(DataError, match="column 'x' holds null in row 5"):
        list(DataLoader(read_batches(mixed, ["x"], **IN_ORDER), 4))


@pytest.mark.parametrize("batch_size", [3, 10, 64])
def test_an_identity_gives_what_there_is_without_one(mixed: str, batch_size: int) -> None:
    """From the spool, where rows are the same objects, and by its batches."""
    arguments: dict[str, Any] = {"seed": 4, "num_epochs": 3, "schema_fields": ["pair", "true", "n"]}
    plain = list(DataLoader(read_batches(mixed, **arguments), batch_size))
    seen: list[pandas.DataFrame] = []

    def identity(frame: pandas.DataFrame) -> pandas.DataFrame:
        seen.append(frame.copy())
        return frame

    spec = TransformSpec(identity)
    same = list(DataLoader(read_batches(mixed, transform_spec=spec, **arguments), batch_size))
    copied = TransformSpec(lambda frame: frame.assign(pair=frame["pair"].map(numpy.copy)))
    other = list(DataLoader(read_batches(mixed, transform_spec=copied, **arguments), batch_size))
    for expected, *batches in zip(plain, same, other, strict=True):
        for batch in batches:
            assert list(batch) == list(expected)
            for name, tensor in expected.items():
                assert torch.equal(batch[name], tensor) and batch[name].dtype == tensor.dtype
    assert seen[0]["true"].dtype == bool and not seen[0]["pair"][0].flags.writeable
    if batch_size == 3:
        assert sorted(map(len, seen)) == [1, 3, 6, 10, 10], "one batch, two, four, within an epoch"


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [b"a", b"b"], [datetime.date(2024, 1, 1)] * 2, [datetime.datetime(2024, 1, 1)] * 2, [Decimal(1)] * 2],
)
def test_arrays_of_one_length_of_any_type_reach_the_function(tmp_path: Path, values: list[Any]) -> None:
    table = pyarrow.table({"n": range(4), "values": [values] * 4})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    url = str(tmp_path)
    with read_batches(url) as plain, read_batches(url, transform_spec=TransformSpec(lambda frame: frame)) as reader:
        expected, batch = next(plain).values, next(reader).values
    assert batch.dtype == expected.dtype and batch.shape == (4, 2) and numpy.array_equal(batch, expected)


def test_fewer_rows_and_more(mixed: str) -> None:
    even = TransformSpec(lambda frame: frame[frame["n"] % 2 == 0])
    with read_batches(mixed, ["n"], transform_spec=even, **IN_ORDER) as reader:
        assert [batch.n.tolist() for batch in reader] == [[0, 2], [4, 6], [8]]
    loader = DataLoader(read_batches(mixed, ["n"], transform_spec=even, num_epochs=2), 4)
    assert [len(batch["n"]) for batch in loader] == [4, 4, 2]
    with pytest.raises(TypeError, match="the number of rows is known after transform_spec's function"):
        len(loader)
    reverse = TransformSpec(lambda frame: frame[::-1])
    with DataLoader(read_batches(mixed, ["n", "pair"], transform_spec=reverse, shuffle_row_groups=False), 10) as loader:
        (batch,) = loader
    assert sorted(batch["n"].tolist()) == list(range(10)) and torch.equal(batch["pair"][:, 0], batch["n"].float())
    twice = TransformSpec(lambda frame: pandas.concat([frame, frame]))
    assert sum(len(batch["n"]) for batch in DataLoader(read_batches(mixed, ["n"], transform_spec=twice), 4)) == 20
    none = TransformSpec(lambda frame: frame[:0])
    assert not list(read_batches(mixed, ["n"], transform_spec=none))
    with pytest.raises(DataError, match="returned no rows for all row groups, and num_epochs=None"):
        next(read_batches(mixed, ["n"], transform_spec=none, num_epochs=None))
    with pytest.raises(DataError, match="returned no rows for all row groups, and num_epochs=None"):
        next(iter(DataLoader(read_batches(mixed, ["n", "x"], transform_spec=none, num_epochs=None), 4)))


def test_shards_get_as_many_batches_where_the_function_keeps_the_rows(mixed: str) -> None:
    for columns in (["n"], ["n", "content"]):
        lengths = []
        for shard in range(3):
            spec = TransformSpec(lambda frame: frame[["n"]], removed_fields=["content"][: len(columns) - 1])
            reader = read_batches(mixed, columns, transform_spec=spec, cur_shard=shard, shard_count=3)
            lengths.append([len(batch["n"]) for batch in DataLoader(reader, 3)])
        assert lengths == [[3, 1], [3, 1], [3, 1]]  # of four, three and three rows


def test_columns_are_removed_and_selected(mixed: str) -> None:
    removed = TransformSpec(removed_fields=["x", "content", "ragged"])
    with DataLoader(read_batches(mixed, transform_spec=removed), 10) as loader:
        assert list(next(iter(loader))) == ["n", "pair", "true"]
    selected = TransformSpec(lambda frame: frame, selected_fields=["pair", "n"])
    with read_batches(mixed, transform_spec=selected, **IN_ORDER) as reader:
        assert next(reader)._fields == ("pair", "n")
    schema = Unischema("s", [UnischemaField(name, numpy.int64) for name in "abc"])
    with pytest.warns(UserWarning, match="TransformSpec names 'd', which is no column, and is ignored"):
        changed = transform_schema(schema, TransformSpec(None, [("b", numpy.float32, (), True)], ["a", "d"]))
    assert list(changed.fields) == ["c", "b"] and changed.b.numpy_dtype is numpy.float32 and changed.b.nullable


def test_a_reader_of_rows_gives_dicts(mixed: str) -> None:
    spec = TransformSpec(
        lambda row: {"n": row["n"], "both": numpy.append(row["pair"], 1)},
        [("both", numpy.float32, (3,), False)],
        ["pair"],
    )
    with read_rows(mixed, ["n", "pair"], transform_spec=spec, **IN_ORDER) as reader:
        assert [row.both.tolist() for row in reader] == [[n, -n, 1] for n in range(10)]
    with DataLoader(read_rows(mixed, ["n", "pair"], transform_spec=spec), 10) as loader:
        assert next(iter(loader))["both"].shape == (10, 3) and len(loader) == 1


def test_calls_share_names_and_no_changes_of_them(mixed: str) -> None:
    seen: list[Any] = []

    def naming(frame: pandas.DataFrame) -> pandas.DataFrame:
        seen.append((frame.columns.name, list(frame.columns)))
        frame.columns.name = "changed"
        return frame if len(seen) < 3 else frame.rename(columns={"n": "other"})

    with (
        read_batches(mixed, ["n", "true"], transform_spec=TransformSpec(naming), **IN_ORDER) as reader,
        pytest.raises(DataError, match=r"the columns are \['other', 'true'\], and by the schema \['n', 'true'\]"),
    ):
        list(reader)
    assert seen == [(None, ["n", "true"])] * 3


def test_rows_have_the_values_that_a_function_returned(mixed: str) -> None:
    def changed(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 9:  # another order of the names
            return {"true": "last", "n": 9}
        return {"n": int(row["n"]), "true": None}

    spec = TransformSpec(changed)
    with read_rows(mixed, ["n", "true"], transform_spec=spec, shuffle_rows=True, seed=1) as reader:
        rows = sorted(reader)
    assert [(row.n, row.true) for row in rows] == [*((n, None) for n in range(9)), (9, "last")]
    assert {type(row.n) for row in rows} == {int}


def test_what_is_refused(mixed: str) -> None:
    def failing(frame: pandas.DataFrame) -> pandas.DataFrame:
        raise KeyError("no such thing")

    def refused(text: str, spec: TransformSpec) -> None:
        for columns in (["n", "pair"], ["n", "pair", "x"]):  # from the spool, and from row groups
            reader = read_batches(mixed, columns, transform_spec=spec, **IN_ORDER)
            with pytest.raises(DataError, match=text):
                list(reader if len(columns) == 2 else DataLoader(reader, 4))
        with pytest.raises(DataError, match=text):
            list(DataLoader(read_batches(mixed, ["n", "pair"], transform_spec=spec), 4))

    refused(r"(?s)failed on \d+ rows of .*KeyError: 'no such thing'.*in failing", TransformSpec(failing))
    refused("takes and returns a pandas.DataFrame; it returned NoneType", TransformSpec(lambda frame: None))
    refused("Name new and changed columns in edit_fields", TransformSpec(lambda frame: frame.assign(y=1)))
    refused("Name new and changed columns in edit_fields", TransformSpec(lambda frame: frame[["n"]]))
    shape = [("pair", numpy.float32, (3, 2), False)]
    refused(r"with the shape \[3, 2\], and its function returned arrays of \[2\]", TransformSpec(padded_pair, shape))
    with pytest.raises(ValueError, match="takes removed_fields or selected_fields, not both"):
        TransformSpec(None, None, ["x"], ["n"])
    with pytest.raises(ValueError, match=r"edit_fields has entries \(name, numpy type, shape, nullable\).*it has 'x'"):
        TransformSpec(None, ["x"])
    text = TransformSpec(lambda frame: frame.assign(name="a"), [("name", numpy.str_, (), False)])
    with pytest.raises(
        DataError, match=r"column 'name' holds str_ values, which PyTorch tensors can't hold.*removed_f"
    ):
        list(BatchedDataLoader(read_batches(mixed, ["n"], transform_spec=text), 4))
    assert next(iter(DataLoader(read_batches(mixed, ["n"], transform_spec=text), 4)))["name"] == ["a"] * 4
    with pytest.raises(DataError, match="make_reader gives transform_spec's function a dict for each row"):
        next(read_rows(mixed, ["n"], transform_spec=TransformSpec(lambda row: [row])))
    with pytest.raises(DataError, match="Name new and changed columns in edit_fields"):
        next(read_rows(mixed, ["n"], transform_spec=TransformSpec(lambda row: {})))


def padded_pair(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame.assign(pair=frame["pair"].map(numpy.copy))
