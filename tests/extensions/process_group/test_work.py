"""The Work of an operation: waited for once, its errors, its future and its callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import DistBackendError

from spark_estimator.errors import MismatchError, PeerLostError
from spark_estimator.extensions.process_group.work import AllOf, GroupWork, is_running_callbacks, translate_error

MINUTE = timedelta(minutes=1)


class Awaited:
    """Ends when `end` is called, with an error or without."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._ended = threading.Event()

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self._ended.set()

    def wait(self, timeout: timedelta | None = None) -> None:
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            raise TimeoutError("it took too long")
        if self.error is not None:
            raise self.error

    def done(self) -> bool:
        return self._ended.is_set()


def work_on(awaited: Awaited, finish: Callable[[], list[Any]] | None = None) -> GroupWork:
    return GroupWork("all_reduce on rank 0", awaited, finish or (lambda: [torch.ones(1)]), MINUTE)


def test_results_are_put_in_place_once() -> None:
    awaited, finished = Awaited(), []
    work = work_on(awaited, lambda: finished.append(1) or ["output"])  # type: ignore[func-returns-value]
    assert not work.is_completed() and not work.is_success() and not finished
    awaited.end()
    assert work.wait() and work.is_success() and work.exception() is None
    assert work.result() == ["output"] and len(finished) == 1


def test_a_time_out_is_torch_s_error_and_the_operation_continues() -> None:
    awaited = Awaited()
    work = work_on(awaited)
    with pytest.raises(DistBackendError, match="all_reduce on rank 0: it took too long"):
        work.wait(timedelta(milliseconds=10))
    awaited.end()
    assert work.wait()


def test_an_error_stays() -> None:
    awaited = Awaited()
    work = work_on(awaited)
    awaited.end(PeerLostError("rank 1 is lost"))
    for _ in range(2):
        with pytest.raises(PeerLostError, match="rank 1 is lost"):
            work.wait()
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), PeerLostError)


def test_futures_are_fulfilled_by_the_waiter() -> None:
    awaited = Awaited()
    threads: list[bool] = []
    chained = (
        work_on(awaited).get_future().then(lambda future: threads.append(is_running_callbacks()) or future.value())
    )  # type: ignore[func-returns-value]
    assert not chained.done()
    awaited.end()
    assert chained.wait()[0].tolist() == [1.0]
    assert threads == [True] and not is_running_callbacks()


def test_a_future_of_an_operation_that_failed() -> None:
    awaited = Awaited()
    awaited.end(PeerLostError("rank 1 is lost"))
    with pytest.raises(RuntimeError, match="rank 1 is lost"):
        work_on(awaited).get_future().wait()


def test_the_sender_of_a_message() -> None:
    done = GroupWork("recv on rank 0", None, None, MINUTE, outputs=[], source=lambda: 3)
    assert done.source_rank() == 3
    with pytest.raises(ValueError, match="all_reduce on rank 0 has no sender"):
        GroupWork("all_reduce on rank 0", None, None, MINUTE).source_rank()


def test_several_works_as_one() -> None:
    first, second = Awaited(), Awaited()
    together = AllOf([work_on(first), work_on(second)])
    first.end()
    assert not together.done()
    second.end(PeerLostError("rank 1 is lost"))
    assert together.done()
    with pytest.raises(PeerLostError):
        together.wait(MINUTE)


def test_advice_that_torch_s_callers_can_follow() -> None:
    advice = "All ranks must make the same call under the same name; different tensors need different names."
    error = translate_error(MismatchError(f"The ranks disagree. {advice}"))
    assert isinstance(error, MismatchError)
    assert advice not in str(error) and "torch.distributed.new_group" in str(error)
    other = ValueError(advice)
    assert translate_error(other) is other
