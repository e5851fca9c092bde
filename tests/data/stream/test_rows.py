"""Rows that are read from files in each epoch: `make_torch_dataloader` with limits, in one process and on ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.data.stream.rows import stream_rows
from spark_estimator.errors import DataError
from tests.ranks import run_ranks

ROWS = 500
#: x has 4 bytes, v 12: of a row 16.
ROW_BYTES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """500 rows: x counts them, v is (x, -x, x + 0.5); in two files, whose row groups have 37 rows."""
    made = tmp_path_factory.mktemp("rows")
    for start, stop in ((0, 260), (260, ROWS)):
        x = numpy.arange(start, stop, dtype=numpy.float64)
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(numpy.stack([x, -x, x + 0.5], 1).reshape(-1)), 3)
        table = pyarrow.table({"x": x, "v": vectors, "odd": (x % 2).astype(int)})
        pyarrow.parquet.write_table(table, made / f"{start}.parquet", row_group_size=37)
    return str(made)


def epoch(loader: Any) -> list[float]:
    rows = []
    for batch in loader:
        assert torch.equal(batch["v"], torch.stack([batch["x"], -batch["x"], batch["x"] + 0.5], 1))
        rows += batch["x"].tolist()
    return rows


@pytest.mark.parametrize(
    ("cache_bytes", "buffer_bytes"), [(0, 1), (0, 3000), (0, None), (ROW_BYTES * 100, 2000), (ROW_BYTES * 490, None)]
)
def test_any_limits_give_each_row_once_and_each_epoch_another_order(
    folder: str, cache_bytes: int, buffer_bytes: int | None
) -> None:
    loader = make_torch_dataloader(
        folder, 48, columns=["x", "v"], seed=1, cache_bytes=cache_bytes, buffer_bytes=buffer_bytes
    )
    assert (len(loader), loader.total_rows) == (11, ROWS)
    epochs = [epoch(loader) for _ in range(3)]
    assert all(sorted(rows) == list(range(ROWS)) for rows in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert epoch(loader) == epochs[1], "the same order, now from the disk"


def test_in_order_without_shuffling(folder: str) -> None:
    loader = make_torch_dataloader(folder, 7, columns=["x", "v"], shuffle=False, cache_bytes=1000, buffer_bytes=700)
    assert epoch(loader) == epoch(loader) == list(range(ROWS))


def test_what_fits_on_the_disk_is_not_streamed(folder: str) -> None:
    limited = make_torch_dataloader(folder, 50, columns=["x", "v"], cache_bytes=ROWS * ROW_BYTES)
    assert epoch(limited) == epoch(make_torch_dataloader(folder, 50, columns=["x", "v"]))


def test_limits_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"buffer_bytes=5 needs cache_bytes"):
        make_torch_dataloader("/none", 1, buffer_bytes=5)
    with pytest.raises(ValueError, match=r"cache_bytes must be 0 or more; got -1"):
        make_torch_dataloader("/none", 1, cache_bytes=-1)


def test_the_disk_keeps_what_its_limit_allows(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(tmp_path))
    limit = ROW_BYTES * 200
    loader = make_torch_dataloader(folder, 50, columns=["x", "v"], cache_bytes=limit)
    epoch(loader)
    stats = [os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if tmp_path.name in link(fd)]
    sizes = {stat.st_ino: stat.st_size for stat in stats}
    assert limit * 0.8 < sum(sizes.values()) <= limit
    assert not os.listdir(tmp_path), "files without names, which nothing has to remove"
    # The kept rows are not read again: their file may be missing.
    kept = find_files(folder)
    os.rename(kept.files[0].path, f"{folder}/hidden")
    try:
        with pytest.raises(DataError, match=r"0\.parquet cannot be read"):
            epoch(loader)
    finally:
        os.rename(f"{folder}/hidden", kept.files[0].path)
    assert sorted(epoch(loader)) == list(range(ROWS))


def link(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # that of the listing
        return ""


def test_a_full_disk_costs_speed_alone(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(tmp_path))
    monkeypatch.setattr(os, "pwrite", fail)
    loader = make_torch_dataloader(folder, 50, columns=["x", "v"], cache_bytes=ROW_BYTES * 200)
    assert sorted(epoch(loader)) == sorted(epoch(loader)) == list(range(ROWS))
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("buffer_bytes", [100, 4000])
def test_a_loader_is_taken_up_anywhere(folder: str, buffer_bytes: int) -> None:
    arguments: dict[str, Any] = {"columns": ["x", "v"], "seed": 9, "cache_bytes": 500, "buffer_bytes": buffer_bytes}
    whole = [batch["x"].tolist() for batch in make_torch_dataloader(folder, 20, **arguments)]
    for steps in (0, 1, 13, 24):
        loader = make_torch_dataloader(folder, 20, **arguments)
        first = [batch["x"].tolist() for _, batch in zip(range(steps), loader, strict=False)]
        again = make_torch_dataloader(folder, 20, **arguments)
        again.load_state_dict(loader.state_dict())
        assert [*first, *(batch["x"].tolist() for batch in again)] == whole
        assert again.epoch == 1


def test_a_state_of_rows_that_are_kept_otherwise_is_refused(folder: str) -> None:
    streaming = make_torch_dataloader(folder, 20, columns=["x"], cache_bytes=0)
    kept = make_torch_dataloader(folder, 20, columns=["x"])
    for first, other in ((streaming, kept), (kept, streaming)):
        next(iter(first))
        with pytest.raises(ValueError, match="their orders differ"):
            other.load_state_dict(first.state_dict())


def fields() -> tuple[Field, ...]:
    return (Field(("x",), ("c0",), (1,), "float32"), Field(("odd",), ("c1",), (1,), "int64"))


def test_marked_rows_are_apart(folder: str) -> None:
    source = FileRows(find_files(folder), RowEncoder(("x", "odd"), fields(), marker="odd"))
    result = stream_rows(source, None, RowLimits(0, 3000), "training")
    assert result is not None and result[1] is not None
    for rows, rest in zip(result, (0, 1), strict=True):
        assert rows is not None
        x = numpy.concatenate([batch.matrices[0].ravel() for batch in rows.read_batches(30, order=(1, 2))])
        assert sorted(x) == list(range(rest, ROWS, 2))
        assert sorted(numpy.concatenate([block[0].ravel() for block in rows.read_blocks([0])])) == sorted(x)


def test_a_share_is_left_out_to_the_row(folder: str) -> None:
    source = FileRows(find_files(folder), RowEncoder(("x", "odd"), fields()))
    result = stream_rows(source, None, RowLimits(800, 3000), "training")
    assert result is not None
    parts = result[0].split(0.13, seed=3)
    assert [rows.total for rows in parts] == [435, 65]
    read = [[x for batch in rows.read_batches(30, order=(1, 2)) for x in batch.matrices[0].ravel()] for rows in parts]
    assert sorted(read[0] + read[1]) == list(range(ROWS))
    assert max(numpy.diff(sorted(read[1]))) < 60, "of each row group its part"
    assert sorted(block for blocks in parts[1].read_blocks([0]) for block in blocks[0].ravel()) == sorted(read[1])


def test_rows_that_are_dropped_are_counted_first(tmp_path: Path) -> None:
    values = [None if number % 3 == 0 else float(number) for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.table({"x": values}), tmp_path / "rows.parquet", row_group_size=7)
    loader = make_torch_dataloader(str(tmp_path), 10, nulls="drop", cache_bytes=0)
    assert loader.total_rows == 66
    assert sorted(x for batch in loader for x in batch["x"].tolist()) == [x for x in values if x is not None]
    with pytest.raises(DataError, match=r"row group \d+ .*: column 'x' holds null in row \d"):
        list(make_torch_dataloader(str(tmp_path), 10, cache_bytes=0))


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    def write(rows: int) -> None:
        pyarrow.parquet.write_table(pyarrow.table({"x": [1.0] * rows}), tmp_path / "rows.parquet", row_group_size=7)

    write(70)
    loader = make_torch_dataloader(str(tmp_path), 10, cache_bytes=0)
    write(60)
    with pytest.raises(DataError, match="has changed: its row groups had"):
        list(loader)


def read_some(rank: int, folder: str, state: Any, steps: int) -> tuple[list[list[float]], Any, int]:
    context.init()
    loader = make_torch_dataloader(
        folder, 16, columns=["x", "v"], seed=4, cache_bytes=ROW_BYTES * 50, buffer_bytes=ROW_BYTES * 100
    )
    if state is not None:
        loader.load_state_dict(state)
    rows = [batch["x"].tolist() for _, batch in zip(range(steps), loader, strict=False)]
    return rows, loader.state_dict(), len(loader)


@pytest.mark.slow
def test_four_ranks_three_ranks_four_ranks(folder: str) -> None:
    rows: list[float] = []
    state = None
    for ranks, steps in ((4, 3), (3, 2), (4, 99)):
        result = run_ranks(ranks, read_some, args=(folder, state, steps))
        rows += [row for batches, _, _ in result for batch in batches for row in batch]
        assert all(each == result[0][1] for _, each, _ in result), "a state is the same on all ranks"
        state = result[0][1]
    assert sorted(rows) == list(range(ROWS)), "none is lost, none comes twice"
    assert state is not None and (state["epoch"], state["legs"][0]["steps"]) == (1, 0)


def few(rank: int, folder: str) -> list[tuple[int, float]]:
    context.init()
    source = FileRows(find_files(folder), RowEncoder(("x",), fields()[:1]))
    result = stream_rows(source, None, RowLimits(0, 100), "training")
    assert result is not None
    return [(batch.rows, batch.factor) for batch in result[0].read_batches(4)]


def test_a_rank_without_rows_gets_one_that_does_not_count(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"x": [7.0]}), tmp_path / "rows.parquet")
    assert run_ranks(2, few, args=(str(tmp_path),)) == [[(1, 2.0)], [(0, 0.0)]]


@pytest.fixture
def in_memory(folder: str) -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    for file in find_files(folder).files:
        fs.pipe_file(f"/bucket/{Path(file.path).name}", Path(file.path).read_bytes())
    yield "memory://bucket"
    fs.rm("/bucket", recursive=True)


def test_files_of_an_object_store(in_memory: str) -> None:
    loader = make_torch_dataloader(in_memory, 50, columns=["x", "v"], cache_bytes=1000, buffer_bytes=5000)
    assert sorted(epoch(loader)) == sorted(epoch(loader)) == list(range(ROWS))
