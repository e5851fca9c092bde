"""`DataLoader`: batches of tensors with petastorm's types, and shards of equal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import (
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    TransformSpec,
    make_batch_reader,
    make_reader,
)
from spark_estimator.errors import DataError


def sizes_and_rows(loader: Any, column: str = "n") -> tuple[list[int], list[float]]:
    batches = [batch[column] for batch in loader]
    return [len(batch) for batch in batches], torch.cat(batches).tolist()


def test_batches_have_petastorm_s_types_and_run_on_from_epoch_to_epoch(numbers: str) -> None:
    columns = ["n", "small", "even", "half", "pa.r"]
    reader = make_reader(numbers, schema_fields=columns, num_epochs=3, seed=1)
    with DataLoader(reader, batch_size=10) as loader:
        batches = list(loader)
        assert len(loader) == 8 == len(batches)
        again = [batch["n"] for batch in loader]
    types = {name: (tensor.dtype, list(tensor.shape)) for name, tensor in batches[0].items()}
    assert types == {
        "n": (torch.int32, [10]),
        "small": (torch.int8, [10]),
        "even": (torch.uint8, [10]),
        "half": (torch.float64, [10]),
        "pair": (torch.float32, [10, 2]),
    }
    n = torch.cat([batch["n"] for batch in batches])
    epochs = [n[start : start + 25].tolist() for start in (0, 25, 50)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, torch.cat(again)[:25].tolist()]}) == 4
    for batch in batches:
        assert torch.equal(batch["half"], batch["n"] / 2) and torch.equal(batch["pair"][:, 1], -batch["n"].float())
        batch["n"] += 1  # a copy


@pytest.mark.parametrize(("shards", "batch_size", "epochs"), [(1, 25, 1), (3, 8, 1), (2, 4, 1), (7, 3, 4), (4, 64, 3)])
def test_shards_are_equal_and_have_as_many_batches(numbers: str, shards: int, batch_size: int, epochs: int) -> None:
    all_rows = []
    lengths = set()
    for shard in range(shards):
        arguments = {"num_epochs": epochs, "cur_shard": shard, "shard_count": shards, "seed": 5}
        loader = DataLoader(make_reader(numbers, ["n"], **arguments), batch_size)
        sizes, rows = sizes_and_rows(loader)
        count = epochs * loader.reader.rows
        assert len(sizes) == len(loader) and all(size == batch_size for size in sizes[: count // batch_size])
        all_rows += rows[:count]
        assert len(rows) <= count + len(sizes) - count // batch_size
        lengths.add(len(sizes))
    assert len(lengths) == 1
    assert sorted(all_rows) == sorted(list(range(25)) * epochs)


def test_order_seed_and_no_end(numbers: str) -> None:
    plain = {"shuffle_row_groups": False}
    assert sizes_and_rows(DataLoader(make_reader(numbers, ["n"], **plain), 9)) == ([9, 9, 7], list(range(25)))
    first, other = (sizes_and_rows(DataLoader(make_reader(numbers, ["n"], seed=seed), 9))[1] for seed in (1, 2))
    assert first != other and first == sizes_and_rows(DataLoader(make_reader(numbers, ["n"], seed=1), 9))[1]
    endless = DataLoader(make_reader(numbers, ["n"], num_epochs=None), 10)
    rows = torch.cat([batch["n"] for _, batch in zip(range(10), endless, strict=False)]).tolist()
    assert sorted(rows) == sorted(list(range(25)) * 4)
    with pytest.raises(TypeError, match="num_epochs=None there is no end"):
        len(endless)
    doubled = BatchedDataLoader(make_reader(numbers, ["n"]), 25, transform_fn=lambda array: torch.as_tensor(array * 2))
    assert sorted(sizes_and_rows(doubled)[1]) == list(range(0, 50, 2))


def test_arguments_of_a_loader(numbers: str) -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1; got 0"):
        DataLoader(make_reader(numbers, ["n"]), 0)
    with pytest.raises(TypeError, match=r"batch_size must be a whole number; got 2\.5"):
        DataLoader(make_reader(numbers, ["n"]), 2.5)
    assert DataLoader(make_reader(numbers, ["n"]), 5.0).batch_size == 5
    with pytest.raises(TypeError, match=r"a loader takes a reader of make_reader.*got \[\]"):
        DataLoader([], 4)
    rows = sizes_and_rows(
        DataLoader(make_reader(numbers, ["n"], shuffle_row_groups=False), 25, shuffling_queue_capacity=9)
    )
    assert rows[1] != sorted(rows[1]) == list(range(25)), "a queue mixes rows, also where row groups keep their order"
    collated = DataLoader(make_batch_reader(numbers, ["n", "half"]), 10, collate_fn=lambda rows: rows)
    assert sorted(row["n"] for batch in collated for row in batch) == list(range(25))
    with DataLoader(make_batch_reader(numbers, ["n"]), 10) as loader:
        pass
    with pytest.raises(RuntimeError, match="the loader's with block has ended"):
        list(loader)


@pytest.fixture
def words(tmp_path: Path) -> str:
    """Six rows in row groups of four: n, its text and bytes, and n % 3 + 1 of its texts and numbers."""
    table = pyarrow.table(
        {
            "n": range(6),
            "text": [f"t{n}" for n in range(6)],
            "content": [b"b%d" % n for n in range(6)],
            "texts": [[f"t{n}"] * (n % 3 + 1) for n in range(6)],
            "ragged": [[n] * (n % 3 + 1) for n in range(6)],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=4)
    return str(tmp_path)


@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
def test_texts_and_bytes_are_lists(words: str, make: Any) -> None:
    for spec in (None, TransformSpec(lambda rows: rows)):
        reader = make(words, ["n", "text", "content"], shuffle_row_groups=False, transform_spec=spec)
        with DataLoader(reader, 5) as loader:
            batches = [{**batch, "n": batch["n"].tolist()} for batch in loader]
        assert batches == [
            {
                "n": [0, 1, 2, 3, 4],
                "text": ["t0", "t1", "t2", "t3", "t4"],
                "content": [b"b0", b"b1", b"b2", b"b3", b"b4"],
            },
            {"n": [5], "text": ["t5"], "content": [b"b5"]},
        ]
        assert {type(text) for batch in batches for text in batch["text"]} == {str}


@pytest.mark.parametrize("make", [make_reader, make_batch_reader])
@pytest.mark.parametrize("columns", [None, ["n", "ragged"]])
def test_a_collate_fn_gets_rows_as_they_are(words: str, make: Any, columns: Any) -> None:
    reader = make(words, columns, shuffle_row_groups=False, num_epochs=2)
    with DataLoader(reader, 5, collate_fn=lambda rows: rows, shuffling_queue_capacity=0) as loader:
        rows = [row for batch in loader for row in batch]
        assert len(loader) == 3
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4, 5] * 2
    for row in rows:
        n = row["n"]
        assert row["ragged"].tolist() == [n] * (n % 3 + 1)
        if columns is None:
            assert (row["text"], row["content"]) == (f"t{n}", b"b%d" % n)
            assert row["texts"].tolist() == [f"t{n}"] * (n % 3 + 1)


def test_texts_and_nulls_that_are_refused(words: str, tmp_path: Path) -> None:
    """Before rows are read, where the columns' types show it."""
    for loader, column, message in [
        (DataLoader, "texts", "column 'texts' holds arrays of texts, which"),
        (BatchedDataLoader, "text", "column 'text' holds texts, which"),
        (BatchedDataLoader, "content", "column 'content' holds bytes, which"),
        (DataLoader, "ragged", "pad or cut them in a TransformSpec, or in the collate_fn"),
    ]:
        with pytest.raises(DataError, match=message) as caught:
            loader(make_reader(words, [column]), 2)
        assert "categories=" not in str(caught.value) and "decoders=" not in str(caught.value)
    table = pyarrow.table({"n": [1, None], "text": ["a", None], "v": [[1], [None]]})
    folder = tmp_path / "nulls"
    folder.mkdir()
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    for column in ("n", "v"):
        with pytest.raises(DataError, match=f"column '{column}' holds 1 null in"):
            list(DataLoader(make_reader(str(folder), [column, "text"]), 2, collate_fn=len))
    with pytest.raises(DataError, match="column 'text' holds 1 null in"):
        list(DataLoader(make_reader(str(folder), ["text"]), 2))
    rows = next(iter(DataLoader(make_reader(str(folder), ["text"]), 2, collate_fn=lambda rows: rows)))
    assert rows == [{"text": "a"}, {"text": None}]


def test_a_loader_is_true_also_without_a_known_length(numbers: str) -> None:
    """Notebooks test for one: ``if self.loader: self.loader.__exit__(None, None, None)``."""
    endless = make_reader(numbers, ["n"], num_epochs=None)
    halved = make_batch_reader(numbers, ["n"], transform_spec=TransformSpec(lambda frame: frame[frame.n % 2 == 0]))
    for loader in (DataLoader(endless, 10), BatchedDataLoader(halved, 10), InMemBatchedDataLoader(halved, 10)):
        assert loader


def test_an_override_that_nothing_calls_is_refused() -> None:
    with pytest.raises(TypeError, match="Reshaping overrides _yield_batches, which this package's loaders do not call"):
        type("Reshaping", (BatchedDataLoader,), {"_yield_batches": lambda self, keys: iter(())})
