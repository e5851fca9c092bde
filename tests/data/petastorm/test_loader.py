"""`DataLoader`: batches of tensors with petastorm's types, and shards of equal length."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.data.petastorm import BatchedDataLoader, DataLoader, make_batch_reader, make_reader


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
