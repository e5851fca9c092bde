"""Full disks and unavailable stores: an error that names the place, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk of our own without the right to mount: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def free(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bfree * room.f_bsize


def nothing_is_left(folder: Path, room: int) -> None:
    """Files without a name are freed with the processes that have them open."""
    deadline = time.monotonic() + 10
    while free(folder) < room and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(folder.iterdir()) == [] and free(folder) == room


def test_a_full_disk(spark: SparkSession, estimator: Make, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import functions

    room = free(small_disk)
    numbers = functions.transform(functions.sequence(functions.lit(1), functions.lit(120)), lambda _: functions.rand())
    frame = spark.range(20_000).select(numbers.alias("x"), functions.lit(0.5).cast("float").alias("y"))  # 2 x 4.8 MB
    net = nn.Linear(120, 1)
    made = estimator(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0), feature_cols=["x"], epochs=1)
    store = Store.create(str(small_disk))
    host = socket.gethostname()
    words = rf"^{small_disk}/intermediate_train_data/part-.*parquet cannot be written on host {host} after \d+ rows: "
    with pytest.raises(DataError, match=words + r".*No space left.*Nothing of it is left"):
        made.copy({made.store: store, made.materialize: True}).fit(frame)  # type: ignore[attr-defined]
    nothing_is_left(small_disk, room)

    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(small_disk))
    words = rf"^rank \d \(host \S+\): no space left in {small_disk} on host {host} after \d+ rows \(\d+ "
    with pytest.raises(DataError, match=words):
        made.fit(frame)
    nothing_is_left(small_disk, room)


class Away(fsspec.AbstractFileSystem):
    """A server that does not answer."""

    protocol = "away"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        return socket.create_connection(("127.0.0.1", 9), timeout=5)


def test_a_store_that_is_away(line: DataFrame, estimator: Make) -> None:
    fsspec.register_implementation("away", Away, clobber=True)
    words = rf"the store's folder away://x cannot be listed on host {socket.gethostname()}: ConnectionRefusedError"
    with pytest.raises(DataError, match=words):
        estimator(store=Store.create("away://x"), materialize=True).fit(line)
