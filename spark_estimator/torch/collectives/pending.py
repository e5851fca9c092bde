"""The asynchronous collectives that have not been waited for, by the handle number that the caller holds."""

from __future__ import annotations

import itertools
import operator
import reprlib
from collections.abc import Callable
from typing import Any, NamedTuple

from spark_estimator.collectives.handle import Handle
from spark_estimator.errors import HorovodInternalError


class _Pending(NamedTuple):
    handle: Handle
    result: Callable[[], Any]


_pending: dict[int, _Pending] = {}
_numbers = itertools.count(1)


def register_pending(handle: Handle, result: Callable[[], Any]) -> int:
    """Return a number for a submitted collective; `result` makes, when it is done, what `synchronize` returns."""
    number = next(_numbers)
    _pending[number] = _Pending(handle, result)
    return number


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation.

    Args:
        handle: what the operation returned.

    The result of CUDA tensors may be used on the stream that is current now; the CPU does not wait for the GPU.

    Returns:
        Its result: a tensor, of a grouped operation a tuple of tensors, of an alltoall the pair of the rows received
        and of how many each rank sent. None when the handle is unknown or was used before.

    Raises:
        HorovodInternalError: the operation failed: the ranks disagree about it, or one of them is lost.
        TypeError: `handle` is no number.
        ValueError: the current stream is being captured into a CUDA graph.
    """
    pending = _pending.get(_check_handle(handle, "synchronize"))
    if pending is None:
        return None
    try:
        pending.handle.wait()
        result = pending.result()
    except HorovodInternalError:
        _pending.pop(handle, None)
        raise
    # Popped only now: a wait that Ctrl-C has ended may be taken up again, and so one on a stream that cannot wait.
    _pending.pop(handle, None)
    return result


def poll(handle: int) -> bool:
    """Return whether `synchronize(handle)` would return at once.

    Raises:
        TypeError: `handle` is no number.
        ValueError: the handle is unknown, or `synchronize` has returned its result.
    """
    pending = _pending.get(_check_handle(handle, "poll"))
    if pending is None:
        raise ValueError(f"poll({handle}): no operation has this handle, or synchronize({handle}) has returned it.")
    return pending.handle.done()


def _check_handle(handle: object, function: str) -> int:
    try:
        return operator.index(handle)  # type: ignore[arg-type]  # which is what it is asked
    except TypeError:
        pass
    advice = "pass the handles one by one." if isinstance(handle, (list, tuple, set, dict)) else ""
    if callable(handle):
        advice = "what sparse_allreduce_async returned is called itself, as handle()."
    raise TypeError(
        f"{function}() takes the number that an asynchronous operation returned, not {reprlib.repr(handle)} "
        f"({type(handle).__name__}){': ' + advice if advice else '.'}"
    ) from None
