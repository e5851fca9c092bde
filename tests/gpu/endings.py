"""What ``check.py`` has ranks with real GPUs do at the end of a membership: leave and return, die, be refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

import torch

import spark_estimator.torch as hvd
from spark_estimator.errors import HorovodInternalError, PeerLostError
from tests.gpu.in_rank import Task
from tests.gpu.tensors import check_equal
from tests.ranks import Outcome

#: Seconds after which a rank without a report of a lost peer gives up.
_PATIENCE = 30.0
#: Requests that are in flight at a time.
_AHEAD = 8
DIES = 1


def leaving_and_coming_back() -> None:
    """Three memberships of one process; it leaves while its GPU is still at work on what it has submitted."""
    rank, size = hvd.rank(), hvd.size()
    for turn in range(3):
        tensor = torch.full((1 << 20,), float(rank + turn), device="cuda")
        gathered = hvd.allgather(torch.full((rank + 1, 2), float(turn), device="cuda"))
        torch.cuda._sleep(20_000_000)  # about 10 ms
        total = hvd.allreduce(tensor, op=hvd.Sum)
        hvd.shutdown()
        check_equal(total[:: 1 << 14], torch.full((64,), sum(range(size)) + size * float(turn)), turn)
        check_equal(gathered, torch.full((size * (size + 1) // 2, 2), float(turn)), turn)
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size)


def nccl_is_refused() -> None:
    """Ranks that share a GPU and have to use NCCL."""
    try:
        hvd.allreduce(torch.ones(4, device="cuda"))
    except HorovodInternalError as error:
        assert "share one GPU" in str(error) and "rank 0" in str(error) and "rank 1" in str(error), error
    else:
        raise AssertionError("two ranks on one GPU went by NCCL, or by another way than was demanded")


def lose_a_peer(rank: int, begin: Callable[[int], None]) -> str:
    """Rank 1 dies while requests are in flight; returns another rank's error, "" if it got none."""
    begin(rank)
    hvd.init()
    tensors = [torch.ones(1_000_000, device="cuda") for _ in range(_AHEAD)]
    for turn in range(5):
        hvd.allreduce_(tensors[turn], name=f"together {turn}")
    error_text = ""
    handles: list[int] = []
    deadline = time.monotonic() + _PATIENCE
    try:
        for turn in range(1 << 30):
            if len(handles) == _AHEAD:
                hvd.synchronize(handles.pop(0))
            handles.append(hvd.allreduce_async_(tensors[turn % _AHEAD], name=f"under way {turn % _AHEAD}"))
            if rank == DIES and turn == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            if time.monotonic() > deadline:
                break
    except PeerLostError as error:
        error_text = str(error)
    torch.cuda.synchronize()  # a hang here shows by the stacks
    hvd.shutdown()
    assert float(torch.ones(3, device="cuda").sum()) == 3.0
    return error_text


def trouble_of_losing(outcomes: Sequence[Outcome]) -> str:
    """What is wrong with the results of the ranks of `lose_a_peer`; "": nothing."""
    died = outcomes[DIES]
    if died.exit_code != -signal.SIGKILL:
        return f"rank {DIES} was to kill itself, and did not come to it:\n{died}"
    for outcome in outcomes:
        if outcome.rank == DIES:
            continue
        if not outcome.returned:
            return f"rank {outcome.rank} did not end well after rank {DIES} had died:\n{outcome}"
        if not outcome.value:
            return f"rank {outcome.rank} was not told within {_PATIENCE:.0f} s that rank {DIES} had died"
        if f"rank {DIES}" not in outcome.value:
            return f"rank {outcome.rank} was told of a lost peer, but not of rank {DIES}: {outcome.value}"
    return ""


ENDINGS: dict[str, Task] = {"leaving and coming back": leaving_and_coming_back}
