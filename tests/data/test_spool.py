"""Fields, and the spool between a supervisor and its worker."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy
import pyarrow
import pytest

from spark_estimator.data.fields import Field, matrix_of, widths_of
from spark_estimator.data.spool import Spool, SpoolFeed, Writer, receive
from spark_estimator.errors import DataError


def batch(**columns: object) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pydict(columns)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def through(feed: SpoolFeed, batches: Iterator[pyarrow.RecordBatch]) -> tuple[Spool, Spool]:
    ours, theirs = pair()
    with ours, theirs:
        thread = threading.Thread(target=feed.take, args=(batches, ours), daemon=True)
        thread.start()
        theirs.settimeout(20)
        found = receive(feed.fields, theirs)
        thread.join(20)
        return found


X = Field(("x", "y"), ("c0", "c1"), (1, 2), "float32", (3,))
LABEL = Field(("label",), ("c2",), (1,), "int64")


def test_columns_stand_side_by_side() -> None:
    rows = batch(c0=[1.0, 2.0], c1=[[3.0, 4.0], [5.0, 6.0]])
    assert matrix_of(rows, X).tolist() == [[1, 3, 4], [2, 5, 6]]
    assert matrix_of(rows.slice(1), X).tolist() == [[2, 5, 6]], "a slice has offsets of its own"


def test_a_field_has_as_many_values_as_its_shape() -> None:
    with pytest.raises(ValueError, match=r"x, y has 3 values a row.*\[2, 2\]"):
        Field(("x", "y"), ("c0", "c1"), (1, 2), "float32", (2, 2))


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"c2": [1, None]}, LABEL, r"'label' holds null in row 8"),
        ({"c2": [1.0, 2.5]}, LABEL, r"whole numbers in the first rows.*row 8 .*2\.5"),
        ({"c0": [1.0, 2.0], "c1": [[1.0, 2.0], [1.0]]}, X, r"'y' has 2 values in the first rows, but 1 in row 8"),
        ({"c0": [1.0, 2.0], "c1": [[1.0, 2.0], [1.0, None]]}, X, r"'y' holds null inside of the array in row 8"),
        ({"c0": [1.0, 2.0], "c1": [[1.0, 2.0], None]}, X, r"'y' holds null in row 8"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, object], field: Field, words: str) -> None:
    with pytest.raises(DataError, match=words):
        matrix_of(batch(**columns), field, row=7)


def test_widths() -> None:
    rows = batch(a=[1, 2], b=[[1], [2]], c=[[1], [2, 3]])
    assert widths_of(rows, ["a", "b", "c"]) == [1, 1, None]


def test_rows_reach_the_worker(tmp_path: Path) -> None:
    batches = [batch(c0=[1.0 * n], c1=[[2.0 * n, 3.0 * n]], c2=[n]) for n in range(5)]
    feed = SpoolFeed((X, LABEL), folder=str(tmp_path))
    train, held = through(feed, iter(batches))
    assert train.matrices[0].tolist() == [[n, 2 * n, 3 * n] for n in range(5)]
    assert train.matrices[1].ravel().tolist() == list(range(5))
    assert held.rows == 0
    assert os.listdir(tmp_path) == [], "the files have no names"
    with pytest.raises(ValueError, match="read-only"):
        train.matrices[0][0, 0] = 1


def test_marked_rows_are_kept_apart(tmp_path: Path) -> None:
    feed = SpoolFeed((LABEL,), marker="marker", folder=str(tmp_path))
    train, held = through(feed, iter([batch(c2=[1, 2, 3, 4], marker=[True, False, None, True])]))
    assert train.matrices[0].ravel().tolist() == [2, 3], "a row without a mark is trained on"
    assert held.matrices[0].ravel().tolist() == [1, 4]


def test_no_rows_at_all(tmp_path: Path) -> None:
    train, held = through(SpoolFeed((X, LABEL), folder=str(tmp_path)), iter([]))
    assert train.rows == held.rows == 0
    assert train.matrices[0].shape == (0, 3)


def test_a_bad_value_is_told_to_the_worker(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'label' holds null in row 0"):
        through(SpoolFeed((LABEL,), folder=str(tmp_path)), iter([batch(c2=pyarrow.array([None], pyarrow.int64()))]))


def test_spark_s_own_failure_is_told_to_the_worker(tmp_path: Path) -> None:
    def broken() -> Iterator[pyarrow.RecordBatch]:
        yield batch(c2=[1])
        raise OSError("the stream broke")

    with pytest.raises(DataError, match="OSError: the stream broke"):
        through(SpoolFeed((LABEL,), folder=str(tmp_path)), broken())


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="SPARK_ESTIMATOR_SPOOL_FOLDER='/nowhere' is no folder on host"):
        through(SpoolFeed((LABEL,), folder="/nowhere"), iter([batch(c2=[1])]))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    writer = Writer((LABEL,), str(tmp_path))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer.descriptors[0])
    os.close(full)
    with pytest.raises(DataError, match=rf"no space left in {tmp_path} after 0 rows.*SPARK_ESTIMATOR_SPOOL_FOLDER"):
        writer.append(batch(c2=[1]))


def test_a_supervisor_that_is_gone() -> None:
    ours, theirs = pair()
    ours.close()
    with theirs, pytest.raises(DataError, match="ended before it had all rows"):
        receive((LABEL,), theirs)


def test_a_worker_that_is_gone_ends_the_feed(tmp_path: Path) -> None:
    taken = []

    def batches() -> Iterator[pyarrow.RecordBatch]:
        for number in range(100):
            taken.append(number)
            yield batch(c2=[number])

    ours, theirs = pair()
    with ours, theirs:
        SpoolFeed((LABEL,), folder=str(tmp_path)).take(batches(), ours, lambda: len(taken) > 3)
    assert len(taken) == 4


def test_a_large_spool_is_mapped_not_held(tmp_path: Path) -> None:
    field = Field(("v",), ("c0",), (1000,), "float64", (1000,))
    writer = Writer((field,), str(tmp_path))
    values = numpy.random.default_rng(0).random((500, 1000))
    for piece in numpy.array_split(values, 7):
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(piece.ravel()), 1000)
        writer.append(pyarrow.RecordBatch.from_arrays([lists], names=["c0"]))
    assert numpy.array_equal(writer.spool().matrices[0], values)
