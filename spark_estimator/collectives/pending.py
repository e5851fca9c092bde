"""A rank's requests that are not done: its report of them to waiting ranks, and those that no caller waits for."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_estimator import _native
from spark_estimator._native import Op, Status
from spark_estimator.errors import HorovodInternalError

if TYPE_CHECKING:
    from spark_estimator.collectives.engine import Engine

# Enough to see which call is another on this rank than on the rest; a thousand gradients must not fill a log.
_SHOWN = 10

# Optimizers number their requests by how many of them the rank had made before.
_COUNTED = re.compile(r"DistributedOptimizer\.\d+\b")


@dataclass
class Pending:
    """A request whose result has not been fetched.

    Attributes:
        op, name: of the collective.
        since: on the monotonic clock, in seconds.
        waiters: how many threads wait for it now.
    """

    op: Op
    name: str
    since: float
    waiters: int = 0


class DetachedRequests:
    """Requests that no caller waits for any more, and owners of their memory, which live until they are done."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, object, int | None]] = deque()
        self._releasing = threading.Lock()

    def add(self, number: int, keep: object, stream: int | None) -> None:
        """Add a request, with the owners of its memory.

        A GPU request waits for what the GPU does with its tensors on `stream` before they are released.
        """
        self._requests.append((number, keep, stream))

    def release_done(self, engine: Engine) -> None:
        """Forget the requests that are done."""
        if not self._requests or not self._releasing.acquire(blocking=False):
            return
        try:
            for _ in range(len(self._requests)):
                number, keep, stream = self._requests.popleft()
                status = Status.OK if engine.native.pointer is None else engine.poll(number)
                if status is Status.IN_PROGRESS:
                    self._requests.append((number, keep, stream))
                    continue
                if stream is not None and engine.native.pointer is not None:
                    try:
                        if status is not Status.OK:
                            raise _native.make_error(status, "")
                        engine.await_on_stream(number, stream)
                    except Exception as error:  # no caller is left that would see it
                        engine.gpu.hold(keep, error)
                engine.release(number)
        finally:
            self._releasing.release()

    def clear(self) -> None:
        """Forget all requests."""
        self._requests.clear()


def describe_requests(engines: Iterable[Engine], now: float) -> str:
    """Describe the collectives of all groups that this rank has submitted and that are not done, the oldest first."""
    waiting: list[tuple[float, str]] = []
    submitted: list[tuple[float, str]] = []
    for engine in engines:
        where = f" of process set {engine.process_set}" if engine.process_set else ""
        for number, request in list(engine.pending.items()):
            if _is_done(engine, number):
                continue  # its result has not been fetched, perhaps never will be: no rank waits because of that
            text = f"{request.op.name.lower()} {request.name!r}{where} ({now - request.since:.0f} s)"
            (waiting if request.waiters else submitted).append((request.since, text))
    text = "It is not waiting in a collective."
    if waiting:
        text = f"It is waiting for other ranks in {_describe_oldest(waiting)}."
    if submitted:
        text += f" It has submitted, without waiting for the result: {_describe_oldest(submitted)}."
    counted = _COUNTED.search(text)
    if counted is not None:
        text += (
            f" The number in {counted[0]!r} counts the ones that this rank made before: a rank that made more, fewer, "
            "or in another order uses other names than the rest. Make the same ones in the same order on all ranks."
        )
    return text


def find_longest_wait(engines: Iterable[Engine], now: float) -> tuple[float, str]:
    """Return for how many seconds, and in which collective, this rank waits for others; (0, '') for none."""
    waits = [
        (now - request.since, f"{request.op.name.lower()} {request.name!r}")
        for engine in engines
        for number, request in list(engine.pending.items())
        if request.waiters and not _is_done(engine, number)
    ]
    return max(waits, default=(0.0, ""))


def _is_done(engine: Engine, number: int) -> bool:
    try:
        return engine.poll(number) is not Status.IN_PROGRESS
    except HorovodInternalError:  # the engine has ended
        return True


def _describe_oldest(requests: Sequence[tuple[float, str]]) -> str:
    more = f" and {len(requests) - _SHOWN} more" if len(requests) > _SHOWN else ""
    return ", ".join(text for _, text in sorted(requests)[:_SHOWN]) + more
