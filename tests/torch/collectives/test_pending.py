"""The numbers of asynchronous operations: waited for once, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.errors import HorovodInternalError
from spark_estimator.torch.collectives import pending
from tests.torch.rank_pool import RankPool

Call = Callable[..., Any]


@pytest.mark.parametrize("question", [hvd.synchronize, hvd.poll])
def test_what_is_no_handle(question: Call) -> None:
    for thing, advice in (
        ([1], r"not \[1\] \(list\): pass"),
        (len, "is called itself"),
        ("1", "not '1'"),
        (None, "None"),
    ):
        with pytest.raises(TypeError, match=rf"^{question.__name__}\(\) takes the number .*{advice}"):
            question(thing)


def test_a_handle_that_is_used_or_unknown(job_of_one: None) -> None:
    handle = hvd.allreduce_async(torch.ones(1))
    assert hvd.synchronize(handle).item() == 1
    for absent in (handle, 10**9):
        assert hvd.synchronize(absent) is None
        with pytest.raises(ValueError, match=rf"poll\({absent}\): no operation has this handle"):
            hvd.poll(absent)


def test_handles(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        names = [f"tensor {number}" for number in range(20)]
        order = names if rank == 0 else names[::-1]
        handles = {name: hvd.allreduce_async(torch.full((3,), float(names.index(name))), name=name) for name in order}
        assert all(isinstance(handle, int) for handle in handles.values())
        for number, name in enumerate(names):
            result = hvd.synchronize(handles[name])
            assert result is not None
            assert result.tolist() == [number] * 3
        assert hvd.synchronize(handles["tensor 0"]) is None
        assert hvd.synchronize(123456789) is None
        handle = hvd.broadcast_async_(torch.ones(2), 0)
        hvd.barrier()
        while not hvd.poll(handle):
            pass
        assert hvd.synchronize(handle) is not None

    two_ranks.run(check)


class Waits:
    """A handle that raises these errors, one a wait, and is done after them."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)

    def wait(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def done(self) -> bool:
        return not self.errors


def test_a_wait_that_was_interrupted_may_be_taken_up_again() -> None:
    number = pending.register_pending(Waits(KeyboardInterrupt()), lambda: "result")  # type: ignore[arg-type]
    assert not pending.poll(number)
    with pytest.raises(KeyboardInterrupt):
        pending.synchronize(number)
    assert pending.poll(number)
    assert pending.synchronize(number) == "result"
    assert pending.synchronize(number) is None


def test_an_operation_that_failed_is_gone() -> None:
    number = pending.register_pending(Waits(HorovodInternalError("a rank is lost")), lambda: "result")  # type: ignore[arg-type]
    with pytest.raises(HorovodInternalError, match="a rank is lost"):
        pending.synchronize(number)
    assert pending.synchronize(number) is None
