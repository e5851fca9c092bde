"""Rows of a DataFrame for the ranks: a task passes its rows from Spark to a `Feed` while it supervises its worker."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from spark_estimator.env import FEED_FD_VARIABLE
from spark_estimator.errors import NotInitializedError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

# Once the worker has ended, the feed stops at the next batch.
_LAST_BATCH = timedelta(seconds=5)


class Feed(Protocol):
    """Takes a task's rows. It is pickled to the tasks."""

    def take(
        self,
        batches: Iterator[pyarrow.RecordBatch],
        worker: socket.socket,
        environment: Mapping[str, str],
        ended: Callable[[], bool],
    ) -> None:
        """Take all rows, in a separate thread, and send them, or an error, to the worker behind the socket.

        They are no longer needed once `ended`, called before each batch, is true.
        """
        ...


@dataclass(frozen=True)
class Rows:
    """Rows for the ranks of a job.

    Attributes:
        frame: they are spread over the ranks.
        feed: takes each rank's.
        by: columns whose values choose a row's rank; empty: round robin, for which Spark has to sort the rows.
    """

    frame: DataFrame
    feed: Feed
    by: tuple[str, ...] = ()


class Feeding:
    """Sends one task's rows to its worker; does nothing without a feed.

    Attributes:
        worker_ends: what the worker inherits.
        variables: the number of that descriptor, for the worker's environment.
    """

    def __init__(self, feed: Feed | None, batches: Iterator[pyarrow.RecordBatch]) -> None:
        self.worker_ends: tuple[socket.socket, ...] = ()
        self.variables: Mapping[str, str] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._environment: Mapping[str, str] = {}
        if feed is None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.worker_ends = (theirs,)
        self.variables = {FEED_FD_VARIABLE: str(theirs.fileno())}

        def work() -> None:
            with ours:
                feed.take(batches, ours, self._environment, self._ended.is_set)

        self._thread = threading.Thread(target=work, name="spark_estimator feed", daemon=True)

    def start(self, environment: Mapping[str, str]) -> None:
        """Begin to take rows; `environment`: the worker's variables."""
        self._environment = environment
        if self._thread is not None:
            self._thread.start()

    def end(self) -> None:
        """End the feed: the rows are no longer needed."""
        self._ended.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(_LAST_BATCH.total_seconds())


def open_worker_end() -> socket.socket:
    """Open a worker's socket for its rows, once. Raises NotInitializedError: this is no worker that gets rows."""
    descriptor = os.environ.pop(FEED_FD_VARIABLE, None)
    if descriptor is None:
        raise NotInitializedError
    return socket.socket(fileno=int(descriptor))
