"""`make_torch_dataloader`, in one process and on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

pytest.importorskip("torch")

import torch

from spark_estimator.collectives import context
from spark_estimator.data import make_torch_dataloader
from spark_estimator.errors import DataError
from tests.ranks import run_ranks


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """25 rows of x, y (vectors of two) and label, in two files."""
    for start, stop in ((0, 11), (11, 25)):
        n = list(range(start, stop))
        vectors = pyarrow.array([[number + 0.5, number - 0.5] for number in n], pyarrow.list_(pyarrow.float64()))
        table = pyarrow.table(
            {"x": [float(number) for number in n], "y": vectors, "label": [number % 3 for number in n]}
        )
        pyarrow.parquet.write_table(table, tmp_path / f"{start}.parquet", row_group_size=4)
    return str(tmp_path)


def test_dicts_and_tuples(folder: str) -> None:
    loader = make_torch_dataloader(folder, 10, shuffle=False)
    assert (len(loader), loader.total_rows) == (3, 25)
    batches = list(loader)
    assert [len(batch["x"]) for batch in batches] == [9, 8, 8]
    assert list(batches[0]) == ["x", "y", "label"]
    assert torch.cat([batch["x"] for batch in batches]).tolist() == list(range(25))
    assert (batches[0]["label"].dtype, batches[0]["x"].dtype) == (torch.int64, torch.float32)
    assert batches[0]["y"].shape == (9, 2)

    ((features, label), *_) = make_torch_dataloader(folder, 25, feature_cols=["x", "y"], label_cols=["label"], seed=3)
    assert (features.shape, label.shape) == ((25, 3), (25,))
    assert torch.equal(features[:, 0] % 3, label.float()) and torch.equal(features[:, 1], features[:, 0] + 0.5)
    features += 1  # a copy


def decode(content: bytes) -> numpy.ndarray[Any, Any]:
    return numpy.frombuffer(content, numpy.uint8).reshape(2, 2)


@pytest.fixture
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    """150 rows: n, v of (n % 3) + 1 values, and bytes of four; the row 140 has a longer v."""
    n = list(range(150))
    vectors = [[float(number)] * (7 if number == 140 else number % 3 + 1) for number in n]
    images = [bytes([number, 1, 2, 3]) for number in n]
    table = pyarrow.table({"n": n, "v": vectors, "image": images})
    made = tmp_path_factory.mktemp("uneven")
    pyarrow.parquet.write_table(table, made / "rows.parquet", row_group_size=20)
    return str(made)


def test_arrays_are_filled_up_and_bytes_are_decoded(uneven: str) -> None:
    arguments: dict[str, Any] = {"padding": -1, "decoders": {"image": decode}}
    (batch,) = make_torch_dataloader(uneven, 200, shuffle=False, **arguments)
    assert isinstance(batch, dict)
    assert (batch["v"].shape, batch["image"].shape, batch["image"].dtype) == ((150, 7), (150, 2, 2), torch.uint8)
    assert batch["v"][140].tolist() == [140.0] * 7 and batch["v"][1].tolist() == [1.0, 1.0] + [-1.0] * 5
    assert batch["image"][149].tolist() == [[149, 1], [2, 3]]
    columns = {"feature_cols": ["v", "image"], "label_cols": ["n"]}
    ((features, n),) = make_torch_dataloader(uneven, 200, shuffle=False, **columns, **arguments)
    assert features.dtype == torch.float32 and torch.equal(features[:, :7], batch["v"])
    assert torch.equal(features[:, 7:], batch["image"].reshape(150, 4).float()) and torch.equal(n, batch["n"])

    with pytest.raises(DataError, match=r"column 'v' has arrays of different lengths.*padding=0"):
        make_torch_dataloader(uneven, 10, columns=["v"])
    with pytest.raises(DataError, match=r"decoders refers to 'pic', which isn't a column that is read: n, v"):
        make_torch_dataloader(uneven, 10, columns=["n", "v"], decoders={"pic": decode})
    with pytest.raises(DataError, match=r"column 'image' has type binary.*decoders=\{"):
        make_torch_dataloader(uneven, 10, columns=["image"])
    with pytest.raises(DataError, match=r"decoder of column 'image' failed in row 0"):
        make_torch_dataloader(uneven, 10, columns=["image"], decoders={"image": lambda content: content.no_such()})


def test_an_epoch_has_an_order_of_its_own(folder: str) -> None:
    def orders(loader: Any) -> list[list[float]]:
        return [torch.cat([batch["x"] for batch in loader]).tolist() for _ in range(2)]

    first, second = orders(make_torch_dataloader(folder, 4, columns=["x"], seed=1))
    assert first != second and sorted(first) == sorted(second) == list(range(25))
    later = make_torch_dataloader([f"{folder}/0.parquet", f"{folder}/11.parquet"], 4, columns=["x"], seed=1)
    later.set_epoch(1)
    assert orders(later)[0] == second


def test_what_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="give the one or the others"):
        make_torch_dataloader(folder, 4, columns=["x"], feature_cols=["x"])
    with pytest.raises(DataError, match="there is no column 'z': the files have 'x', 'y', 'label'"):
        make_torch_dataloader(folder, 4, columns=["z"])


def test_ranks_have_equal_shares_and_as_many_batches(folder: str, uneven: str) -> None:
    def work(rank: int, folder: str, uneven: str) -> dict[str, Any]:
        context.init()
        loader = make_torch_dataloader(folder, 4, columns=["x"])
        batches = [batch["x"].tolist() for batch in loader]
        padded = [batch["v"].shape[1] for batch in make_torch_dataloader(uneven, 80, columns=["v"], padding=0)]
        refused = []
        for path, columns in ((f"{folder}/none", ["x"]), (uneven, ["image"])):
            try:
                make_torch_dataloader(path, 4, columns=columns, padding=0)
            except DataError as error:
                refused.append(str(error))
        context.shutdown()
        return {"len": len(loader), "batches": batches, "refused": refused, "padded": padded}

    results = run_ranks(2, work, args=(folder, uneven))
    assert all(result["padded"] == [7] for result in results), "the longest array of all rows"
    assert [result["len"] for result in results] == [4, 4] == [len(result["batches"]) for result in results]
    rows = [sorted(x for batch in result["batches"] for x in batch) for result in results]
    assert [len(share) for share in rows] == [13, 12]
    assert rows[0] + rows[1] == list(range(25))
    for result in results:
        missing, binary = result["refused"]
        assert "the file or folder does not exist" in missing and "has type binary" in binary


def test_a_loader_goes_on_where_another_one_was(folder: str) -> None:
    whole = [batch["x"].tolist() for batch in make_torch_dataloader(folder, 4, seed=9)]
    loader = make_torch_dataloader(folder, 4, seed=9)
    assert loader.epoch == 0
    batches = iter(loader)
    first = [next(batches)["x"].tolist() for _ in range(3)]
    state = loader.state_dict()
    second = make_torch_dataloader(folder, 4, seed=9)
    second.load_state_dict(state)
    assert [*first, *[batch["x"].tolist() for batch in second]] == whole
    # Then the next epoch follows, as without the interruption.
    assert (second.epoch, second.state_dict()["legs"][0]["steps"]) == (1, 0)
    list(batches)
    assert [batch["x"].tolist() for batch in second] == [batch["x"].tolist() for batch in loader] != whole


def test_another_batch_size_reads_what_is_left(folder: str) -> None:
    loader = make_torch_dataloader(folder, 4, seed=9)
    first = [batch["x"] for _, batch in zip(range(3), loader, strict=False)]
    second = make_torch_dataloader(folder, 7, seed=9)
    second.load_state_dict(loader.state_dict())
    rest = [batch["x"] for batch in second]
    assert sorted(torch.cat([*first, *rest]).tolist()) == list(range(25))
    assert len(rest) == 2


def test_after_the_last_batch_the_next_epoch_begins(folder: str) -> None:
    loader = make_torch_dataloader(folder, 10)
    for step, _ in enumerate(loader, 1):
        position = loader.state_dict()["epoch"], loader.state_dict()["legs"][0]["steps"]
        assert position == ((0, step) if step < 3 else (1, 0))


def test_an_iteration_that_is_given_up_is_followed_by_the_next_epoch(folder: str) -> None:
    loader, other = make_torch_dataloader(folder, 10, seed=2), make_torch_dataloader(folder, 10, seed=2)
    next(iter(loader))
    list(other)
    assert [batch["x"].tolist() for batch in loader] == [batch["x"].tolist() for batch in other]


def test_a_state_of_another_loader_is_refused(folder: str) -> None:
    state = make_torch_dataloader(folder, 10, seed=2).state_dict()
    with pytest.raises(ValueError, match="loader with seed=2, and this one has seed=3"):
        make_torch_dataloader(folder, 10, seed=3).load_state_dict(state)
    with pytest.raises(ValueError, match=r"seed=2, and this one has seed=None \(None: shuffle=False\)"):
        make_torch_dataloader(folder, 10, shuffle=False).load_state_dict(state)
    with pytest.raises(ValueError, match="loader with rows=24, and this one has rows=25"):
        make_torch_dataloader(folder, 10, seed=2).load_state_dict({**state, "rows": 24})


def read_some(rank: int, folder: str, state: Any, steps: int) -> tuple[list[float], Any]:
    context.init()
    loader = make_torch_dataloader(folder, 3, seed=4, nulls="drop")
    if state is not None:
        loader.load_state_dict(state)
    rows: list[float] = []
    for _, batch in zip(range(steps), loader, strict=False):
        rows += batch["x"].tolist()
    return rows, loader.state_dict()


@pytest.mark.slow
def test_other_ranks_read_what_is_left_of_an_epoch_once(tmp_path: Path) -> None:
    # The rows without a number are all in the first rank's stretch.
    values = [None if number < 30 and number % 2 else float(number) for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.table({"x": values}), tmp_path / "rows.parquet", row_group_size=7)
    rows: list[float] = []
    state = None
    for ranks, steps in ((3, 4), (2, 5), (3, 99)):
        result = run_ranks(ranks, read_some, args=(str(tmp_path), state, steps))
        rows += [row for values, _ in result for row in values]
        assert all(each == result[0][1] for _, each in result)
        state = result[0][1]
    assert sorted(rows) == [value for value in values if value is not None]
    assert (state["epoch"], state["legs"][0]["steps"]) == (1, 0)
