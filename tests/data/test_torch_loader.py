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
