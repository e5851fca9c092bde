"""Sending a task's rows to its worker, over the real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from spark_estimator.env import FEED_FD_VARIABLE
from spark_estimator.errors import NotInitializedError
from spark_estimator.launch.spark.row_writer import Feeding, open_worker_end


class Sender:
    """Sends each batch as it is, until the rows are no longer needed."""

    def take(
        self,
        batches: Iterator[Any],
        worker: socket.socket,
        environment: Mapping[str, str],
        ended: Callable[[], bool],
    ) -> None:
        for batch in batches:
            if ended():
                return
            worker.send(batch)


def test_rows_reach_the_worker_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    feeding = Feeding(Sender(), iter([b"one", b"two"]))
    (theirs,) = feeding.worker_ends
    monkeypatch.setenv(FEED_FD_VARIABLE, str(os.dup(int(feeding.variables[FEED_FD_VARIABLE]))))
    theirs.close()
    with open_worker_end() as worker:
        feeding.start({})
        assert [worker.recv(100) for _ in range(3)] == [b"one", b"two", b""]
    feeding.end()
    with pytest.raises(NotInitializedError):
        open_worker_end()  # it can be taken once


def test_a_feed_stops_at_the_next_batch_once_the_worker_has_ended() -> None:
    asked: list[int] = []

    def endless() -> Iterator[bytes]:
        while True:
            asked.append(1)
            yield b"a batch"

    feeding = Feeding(Sender(), endless())
    feeding.end()  # before it was started, too
    feeding.start({})
    feeding.end()
    assert len(asked) == 1
    feeding.worker_ends[0].close()


def test_without_a_feed_there_is_nothing() -> None:
    feeding = Feeding(None, iter([]))
    feeding.start({})
    feeding.end()
    assert (feeding.worker_ends, feeding.variables) == ((), {})
