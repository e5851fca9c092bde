"""A rank's rows on its host's disk: written once as Spark sends them, then mapped by the training process.

Every field has a separate file, row after row, so that a batch is gathered by its row numbers without decoding. The
files have no names: the kernel frees them when the last process that has them open ends, however it ends. A `SpoolFeed`
is sent to each Spark task. Its `SpoolWriter` takes the task's rows there, in the supervisor, and hands the files to the
worker through the socket that the two share.

In order: the supervisor writes all rows, then sends messages with the files' descriptors, or one with the text of the
error, which `receive` raises in the worker. When the supervisor dies, so does the worker.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy
import pyarrow
import pyarrow.compute

from spark_estimator.data.fields import Array, Field
from spark_estimator.data.quoting import rename_columns
from spark_estimator.data.rank.free_memory import get_free_memory
from spark_estimator.data.row_encoder import RowEncoder, make_marks_error
from spark_estimator.env import IN_MEMORY, Settings
from spark_estimator.errors import DataError
from spark_estimator.mapping import map_file
from spark_estimator.peer_json import parse_object

_MESSAGE_BYTES = 1 << 16
# Of a failure's text, which may hold what a user's function has raised; in JSON a character has 12 bytes at most.
_FAILURE_CHARACTERS = 4000
# What rows in memory leave to the programs of the host, or of the control group.
_SPARED_BYTES = 512 << 20
_MOST_SENT = 200  # a message of a Unix socket carries 253 descriptors
_MORE = b"\0"  # of a message with descriptors that others follow


@dataclass(frozen=True)
class Spool:
    """Rows as matrices.

    Attributes:
        fields: what they are.
        matrices: [fields] each [rows, width], mapped from a file.
    """

    fields: tuple[Field, ...]
    matrices: tuple[Array, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.matrices[0])


@dataclass(frozen=True)
class SpoolFeed:
    """Spools the rows that a task receives from Spark. It is sent to the tasks.

    Attributes:
        encoder: makes matrices of the rows.
        names: [columns] under which the encoder knows them; empty: those of `RowEncoder.make_batch`.
    """

    encoder: RowEncoder
    names: tuple[str, ...] = ()

    def take(
        self,
        batches: Iterable[pyarrow.RecordBatch],
        worker: socket.socket,
        environment: Mapping[str, str],
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write all rows and send their files to the worker; on a failure send its text, and the worker ends the job.

        Args:
            batches: the rows.
            worker: the socket whose other end `receive` reads.
            environment: the worker's variables, which name the folder of the spool.
            ended: returns true when no worker waits for the rows any more.
        """
        try:
            rows = (self.name_columns(batch) for batch in _take_until(batches, ended))
            folder = Settings.read(environment).spool_folder
            train, marked = write_spools(self.encoder.encode_batches(rows), self.encoder, folder)
            if ended():
                return
            _send(worker, {"rows": [train.rows, marked.rows]}, [*train.descriptors, *marked.descriptors])
        except BaseException as error:  # any error ends this thread, and the worker waits for rows
            text = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            if len(text) > _FAILURE_CHARACTERS:
                half = _FAILURE_CHARACTERS // 2
                text = f"{text[:half]} ... ({len(text) - 2 * half} characters) ... {text[-half:]}"
            _send(worker, {"failure": text})

    def name_columns(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Return Spark's batch under the encoder's names."""
        return rename_columns(batch, self.names) if self.names else self.encoder.make_batch(batch.columns)


class SpoolWriter:
    """Takes rows, and keeps each field's in a file without a name.

    Args:
        encoder: makes matrices of them.
        configured: as of `find_spool_folder`.
    """

    def __init__(self, encoder: RowEncoder, configured: str | None = None) -> None:
        fields = encoder.fields
        self.rows = 0
        self._encoder = encoder
        self._folder = find_spool_folder(configured)
        self._row_bytes = sum(field.row_bytes for field in fields)
        self._files = [open_nameless_file(self._folder) for _ in fields]

    @property
    def descriptors(self) -> list[int]:
        """Return the descriptors of the files, field by field."""
        return [file.fileno() for file in self._files]

    def append(self, batch: pyarrow.RecordBatch) -> None:
        """Write rows behind those that are there.

        Raises:
            DataError: a value cannot be used, or the disk, or memory, is full.
        """
        try:
            require_room(self._folder, batch.num_rows * self._row_bytes)
            matrices = self._encoder.make_matrices(batch, self.rows)
            for field, file, matrix in zip(self._encoder.fields, self._files, matrices, strict=True):
                write_all(file.fileno(), matrix, self.rows * field.row_bytes)
        except OSError as error:
            raise _make_error(error, self._folder, self.rows, self._row_bytes) from error
        self.rows += batch.num_rows

    def to_spool(self) -> Spool:
        """Return the rows that are there."""
        fields = self._encoder.fields
        matrices = (map_rows(fd, field, self.rows) for fd, field in zip(self.descriptors, fields, strict=True))
        return Spool(fields, tuple(matrices))


def write_spools(
    batches: Iterable[pyarrow.RecordBatch], encoder: RowEncoder, configured: str | None = None
) -> tuple[SpoolWriter, SpoolWriter]:
    """Write all rows.

    Args:
        batches: made by the encoder's `encode_batches`.
        configured: as of `find_spool_folder`.

    Returns:
        Those to train on, and those that are marked.

    Raises:
        DataError: a value cannot be used, or the disk is full.
    """
    train, marked_writer = SpoolWriter(encoder, configured), SpoolWriter(encoder, configured)
    for batch in batches:
        for_training, marked = split_marked(batch)
        train.append(for_training)
        if marked is not None:
            marked_writer.append(marked)
    return train, marked_writer


def split_marked(batch: pyarrow.RecordBatch) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch | None]:
    """Return the rows of an encoded batch to train on, and those that are marked; None: no column marks any.

    Raises:
        DataError: a mark is missing.
    """
    if "marker" not in batch.schema.names:
        return batch, None
    mask = batch.column("marker")
    if mask.null_count:
        raise make_marks_error()
    return batch.filter(pyarrow.compute.invert(mask)), batch.filter(mask)


def receive(fields: Sequence[Field], supervisor: socket.socket) -> tuple[Spool, Spool]:
    """Wait until the supervisor has all rows of this rank. Called once, by the worker.

    Returns:
        The rows to train on, and those for validation.

    Raises:
        DataError: there was something wrong with them.
    """
    text, descriptors = _MORE, list[int]()
    try:
        while text == _MORE:
            text, received, _, _ = socket.recv_fds(supervisor, _MESSAGE_BYTES, _MOST_SENT)
            descriptors += received
        if not text:
            raise DataError("the supervisor ended before it had all rows.")
        message = parse_object(text)
        if "failure" in message:
            raise DataError(message["failure"])
        parts = iter(descriptors)
        train, marked = (
            Spool(tuple(fields), tuple(map_rows(next(parts), field, rows) for field in fields))
            for rows in message["rows"]
        )
        return train, marked
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def map_rows(descriptor: int, field: Field, rows: int) -> Array:
    """Return a file's rows as a read-only matrix [rows, width]; the descriptor may be closed afterwards."""
    if not rows or not field.width:
        return numpy.empty((rows, field.width), field.stored_dtype)
    memory = map_file(descriptor, rows * field.row_bytes, writable=False)
    return numpy.frombuffer(memory, field.stored_dtype).reshape(rows, field.width)


def find_spool_folder(configured: str | None = None) -> str:
    """Return the folder of spools on this host, or `IN_MEMORY`.

    Args:
        configured: the value of SPARK_ESTIMATOR_SPOOL_FOLDER; None: that of this process; empty: the default.

    Raises:
        DataError: the configured folder does not exist on this host.
    """
    configured = Settings.read().spool_folder if configured is None else configured
    if configured == IN_MEMORY:
        return IN_MEMORY
    if configured:
        if not os.path.isdir(configured):
            raise DataError(f"SPARK_ESTIMATOR_SPOOL_FOLDER={configured!r} is no folder on host {socket.gethostname()}.")
        return configured
    of_spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0].strip()
    return of_spark if os.path.isdir(of_spark) else tempfile.gettempdir()


def _take_until(batches: Iterable[pyarrow.RecordBatch], ended: Callable[[], bool]) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        if ended():
            return
        yield batch


def open_nameless_file(folder: str) -> IO[bytes]:
    """Return a file that is freed when the last process that has it open ends.

    Args:
        folder: a result of `find_spool_folder`.

    Raises:
        DataError: it cannot be created.
    """
    try:
        if folder == IN_MEMORY:
            return open(os.memfd_create("spark_estimator rows"), "r+b", buffering=0)
        # Without O_TMPFILE, which not every file system has, the file has a name for a moment.
        return tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError as error:
        raise _make_error(error, folder, 0, 0) from error


def require_room(folder: str, size: int) -> None:
    """Check that memory can hold more rows, if they are kept there: a full one makes the kernel kill a process.

    Args:
        folder: a result of `find_spool_folder`.
        size: bytes that are written next.

    Raises:
        OSError: it can't.
    """
    if folder == IN_MEMORY and (free := get_free_memory()) < size + _SPARED_BYTES:
        raise OSError(errno.ENOMEM, f"{free} bytes are free, of which {_SPARED_BYTES} are left to other programs")


def write_all(descriptor: int, matrix: Array, offset: int) -> None:
    """Write a matrix's rows into a file, from this byte on.

    Raises:
        OSError: the disk is full, or failed.
    """
    if not matrix.size:
        return
    left = memoryview(numpy.ascontiguousarray(matrix).view(numpy.uint8).reshape(-1))  # type: ignore[arg-type]
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def _send(worker: socket.socket, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    *first, last = [descriptors[n : n + _MOST_SENT] for n in range(0, len(descriptors), _MOST_SENT)] or [()]
    try:
        for some in first:
            socket.send_fds(worker, [_MORE], some)
        socket.send_fds(worker, [json.dumps(message).encode()], last)
    except OSError:
        return  # the worker has ended; its exit status has the reason


def _make_error(error: OSError, folder: str, rows: int, row_bytes: int) -> DataError:
    where = f"{folder} on host {socket.gethostname()}"
    done = f"{rows} rows ({rows * row_bytes} bytes) of this rank"
    if error.errno == errno.ENOMEM and folder == IN_MEMORY:
        return DataError(
            f"no {where} is left after {done}: {error.strerror}. Rows are kept in memory because "
            f"spark.io.encryption.enabled is true, or SPARK_ESTIMATOR_SPOOL_FOLDER={IN_MEMORY}. Use more hosts, or "
            "files and cache_bytes=0; or name a folder on an encrypted disk of the executors in "
            "SPARK_ESTIMATOR_SPOOL_FOLDER."
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"no space left in {where} after {done}. Rows are kept there while training runs, once; give it more, or "
            "name another folder of the executors in SPARK_ESTIMATOR_SPOOL_FOLDER."
        )
    return DataError(f"rows cannot be written in {where} after {done}: {error.strerror or error}")
