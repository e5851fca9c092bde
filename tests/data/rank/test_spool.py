"""The spool between a supervisor and its worker."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pyarrow
import pytest

from spark_estimator.data.decoding import Decoder
from spark_estimator.data.fields import Field
from spark_estimator.data.rank import spool
from spark_estimator.data.rank.spool import Spool, SpoolFeed, SpoolWriter, receive
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.transformation import Transformation
from spark_estimator.env import IN_MEMORY, SPOOL_VARIABLE
from spark_estimator.errors import DataError


def batch(**columns: object) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def through(feed: SpoolFeed, batches: Iterator[pyarrow.RecordBatch], folder: str = "") -> tuple[Spool, Spool]:
    ours, theirs = pair()
    with ours, theirs:
        thread = threading.Thread(target=feed.take, args=(batches, ours, {SPOOL_VARIABLE: folder}), daemon=True)
        thread.start()
        theirs.settimeout(20)
        spools = receive(feed.encoder.fields, theirs)
        thread.join(20)
        return spools


X = Field(("x", "y"), ("c0", "c1"), (1, 2), "float32", (3,))
LABEL = Field(("label",), ("c2",), (1,), "int64")
BOTH = RowEncoder(("c0", "c1", "c2"), (X, LABEL))
LABELS = RowEncoder(("c0",), (replace(LABEL, columns=("c0",)),))


def test_rows_reach_the_worker(tmp_path: Path) -> None:
    batches = [batch(c0=[1.0 * n], c1=[[2.0 * n, 3.0 * n]], c2=[n]) for n in range(5)]
    feed = SpoolFeed(BOTH)
    train, held = through(feed, iter(batches), str(tmp_path))
    assert train.matrices[0].tolist() == [[n, 2 * n, 3 * n] for n in range(5)]
    assert train.matrices[1].ravel().tolist() == list(range(5))
    assert held.rows == 0
    assert os.listdir(tmp_path) == [], "the files have no names"
    with pytest.raises(ValueError, match="read-only"):
        train.matrices[0][0, 0] = 1


@pytest.mark.parametrize("count", [100, 101, 300])
def test_many_labels_reach_the_worker(count: int) -> None:
    """A message of a socket carries 253 descriptors."""
    labels = tuple(Field((f"y{number}",), (f"c{number}",), (1,), "int64") for number in range(count))
    rows = batch(**{f"c{number}": [number] for number in range(count)})
    train, held = through(SpoolFeed(RowEncoder(tuple(rows.schema.names), labels)), iter([rows]))
    assert [int(matrix[0, 0]) for matrix in train.matrices] == list(range(count))
    assert len(held.matrices) == count and held.rows == 0


def test_rows_in_memory_touch_no_disk() -> None:
    writer = SpoolWriter(LABELS, IN_MEMORY)
    writer.append(batch(c0=[1, 2]))
    assert os.readlink(f"/proc/self/fd/{writer.descriptors[0]}").startswith("/memfd:")
    assert writer.to_spool().matrices[0].ravel().tolist() == [1, 2]
    train, _ = through(SpoolFeed(LABELS), iter([batch(c0=[3])]), IN_MEMORY)
    assert train.matrices[0].ravel().tolist() == [3]


def test_memory_that_is_full_is_named_before_the_kernel_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(LABELS, IN_MEMORY)
    writer.append(batch(c0=[1]))
    monkeypatch.setattr(spool, "get_free_memory", lambda: (512 << 20) + 15)
    writer.append(batch(c0=[2]))
    words = (
        r"no memory on host .* is left after 2 rows \(16 bytes\) of this rank: 536870927 bytes are free.*encrypted disk"
    )
    with pytest.raises(DataError, match=words):
        writer.append(batch(c0=[3, 4]))
    SpoolWriter(LABELS, "").append(batch(c0=[3, 4]))  # on disk


def test_marked_rows_are_kept_apart() -> None:
    feed = SpoolFeed(replace(LABELS, marker="marker"))
    train, held = through(feed, iter([batch(c0=[1, 2, 3, 4], marker=[True, False, False, True])]))
    assert train.matrices[0].ravel().tolist() == [2, 3]
    assert held.matrices[0].ravel().tolist() == [1, 4]
    feed = SpoolFeed(replace(LABELS, marker="marker"))
    with pytest.raises(DataError, match="validation marks holds null"):
        through(feed, iter([batch(c0=[1, 2], marker=[True, None])]))


def test_no_rows_at_all() -> None:
    train, held = through(SpoolFeed(BOTH), iter([]))
    assert train.rows == held.rows == 0
    assert train.matrices[0].shape == (0, 3)


def test_a_bad_value_is_told_to_the_worker() -> None:
    with pytest.raises(DataError, match="'label' holds null in row 0"):
        through(SpoolFeed(LABELS), iter([batch(c0=pyarrow.array([None], pyarrow.int64()))]))


def test_a_long_failure_is_told_with_its_beginning_and_its_end() -> None:
    def broken() -> Iterator[pyarrow.RecordBatch]:
        yield batch(c0=[1])
        raise ValueError("the first" + "\N{GRINNING FACE}" * 100_000 + "the last")

    with pytest.raises(DataError, match=r"^ValueError: the first(?s:.*)characters(?s:.*)the last\nmore: "):
        through(SpoolFeed(LABELS), broken())


def test_spark_s_own_failure_is_told_to_the_worker() -> None:
    def broken() -> Iterator[pyarrow.RecordBatch]:
        yield batch(c0=[1])
        raise OSError("the stream broke")

    with pytest.raises(DataError, match="OSError: the stream broke"):
        through(SpoolFeed(LABELS), broken())


def exits(_: object) -> object:
    raise SystemExit(3)


def test_a_function_that_exits_is_told_to_the_worker() -> None:
    """As one that raises: its name, the row and the cause, not just that rows are missing."""
    rows = [batch(b=[b"x"]), batch(b=[b"y"])]
    fields = (Field(("b",), ("c0",), (1,), "float32"),)
    for encoder, words in (
        (
            RowEncoder(("b",), fields, decoders={"b": Decoder("b", exits)}),
            "decoder of column 'b' failed in row 0 .*on 1 bytes",
        ),
        (
            RowEncoder(("b",), fields, transformation=Transformation(exits)),
            "transformation_fn failed on 1 rows, from row 0",
        ),
    ):
        with pytest.raises(DataError, match=rf"(?s){words}.*: SystemExit: 3\n.*in exits"):
            through(SpoolFeed(encoder), iter(rows))


def test_a_folder_that_is_none() -> None:
    with pytest.raises(DataError, match="SPARK_ESTIMATOR_SPOOL_FOLDER='/nowhere' is no folder on host"):
        through(SpoolFeed(LABELS), iter([batch(c0=[1])]), "/nowhere")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    writer = SpoolWriter(LABELS, str(tmp_path))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer.descriptors[0])
    os.close(full)
    with pytest.raises(
        DataError,
        match=rf"no space left in {tmp_path} on host .* after 0 rows \(0 bytes\).*SPARK_ESTIMATOR_SPOOL_FOLDER",
    ):
        writer.append(batch(c0=[1]))


def test_a_supervisor_that_is_gone() -> None:
    ours, theirs = pair()
    ours.close()
    with theirs, pytest.raises(DataError, match="ended before it had all rows"):
        receive(LABELS.fields, theirs)


def test_a_worker_that_is_gone_ends_the_feed() -> None:
    taken = []

    def batches() -> Iterator[pyarrow.RecordBatch]:
        for number in range(100):
            taken.append(number)
            yield batch(c0=[number])

    ours, theirs = pair()
    with ours, theirs:
        SpoolFeed(LABELS).take(batches(), ours, {}, lambda: len(taken) > 3)
    assert len(taken) == 4


def test_a_large_spool_is_mapped_not_held(tmp_path: Path) -> None:
    field = Field(("v",), ("c0",), (1000,), "float64", (1000,))
    writer = SpoolWriter(RowEncoder(("v",), (field,)), str(tmp_path))
    values = numpy.random.default_rng(0).random((500, 1000))
    for piece in numpy.array_split(values, 7):
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(piece.ravel()), 1000)
        writer.append(pyarrow.RecordBatch.from_arrays([lists], names=["c0"]))
    assert numpy.array_equal(writer.to_spool().matrices[0], values)
