"""Failures in the torch.distributed backend: which rank gets which error, and how soon."""

from __future__ import annotations

import os
import re
import resource
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError, PeerLostError
from tests.ranks import start_ranks
from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool


def test_ranks_that_disagree_all_hear_of_it(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        with pytest.raises(MismatchError, match=r"torch\.distributed"):
            dist.all_reduce(torch.ones(2 + rank))
        with pytest.raises(MismatchError):
            dist.all_reduce(torch.ones(2, dtype=[torch.float32, torch.int32][rank]))
        # One order for all operations: another operation is a contradiction, not a wait for ever.
        with pytest.raises(MismatchError, match=r"(?s)allreduce.*broadcast|broadcast.*allreduce"):
            dist.all_reduce(torch.ones(2)) if rank else dist.broadcast(torch.ones(2), 0)
        work = dist.all_reduce(torch.ones(2 + rank), async_op=True)
        future = work.get_future()
        with pytest.raises(MismatchError):
            work.wait()
        assert isinstance(work.exception(), MismatchError)
        assert work.is_completed()
        assert not work.is_success()
        with pytest.raises(RuntimeError, match="MismatchError"):
            future.wait()
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2], "the group goes on"

    two_ranks.run(check)


def test_a_wait_that_takes_too_long_says_where(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        soon = timedelta(seconds=0.2)
        hvd.barrier()
        if rank == 0:
            tensor = torch.ones(2)
            work = dist.all_reduce(tensor, async_op=True)
            message = r"torch\.distributed\.all_reduce on rank 0: .*did not complete on rank 0 within 0.2 seconds; some"
            begun = time.monotonic()
            with pytest.raises(dist.DistBackendError, match=message):
                work.wait(soon)
            assert time.monotonic() - begun < 5
            assert not work.is_completed()
            hvd.barrier()
            work.wait()
            assert tensor.tolist() == [2, 2], "it went on meanwhile"
        else:
            hvd.barrier()
            dist.all_reduce(torch.ones(2))

    two_ranks.run(check)


def test_the_time_out_of_a_group(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        import spark_estimator.torch.process_group  # noqa: F401

        dist.init_process_group("spark_estimator", timeout=timedelta(seconds=0.3))
        hvd.barrier()
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match=r"torch\.distributed\.barrier on rank 0: .* 0.3 seconds"):
                dist.barrier()
        hvd.barrier()
        if rank:
            dist.barrier()
        hvd.barrier()  # who leaves takes no part any more
        dist.destroy_process_group()

    two_ranks.run(check)


def test_a_new_group_for_which_a_rank_comes_late(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        if rank == 0:
            soon = timedelta(seconds=0.2)
            for _ in range(2):
                with pytest.raises(dist.DistBackendError, match=r"after 0.2 seconds.* Call it again to keep waiting"):
                    dist.new_group([0, 1], timeout=soon)
            with pytest.raises(
                RuntimeError, match=r"new_group\(\[0\]\) on rank 0: .*new_group\(\[0, 1\]\), ended \(by its timeout"
            ):
                dist.new_group([0])
        hvd.barrier()
        group = dist.new_group([0, 1])
        other = dist.new_group([0])
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        if rank == 0:
            dist.all_reduce(tensor, group=other)
        assert tensor.tolist() == [2, 2]

    two_ranks.run(check)


def test_a_dead_peer_ends_a_step_of_ddp_by_its_name() -> None:
    @in_group
    def train(rank: int) -> float:
        model = DistributedDataParallel(torch.nn.Linear(8, 8), bucket_cap_mb=0.0001)
        for step in range(3):
            if rank == 1 and step == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 1:
                begun = time.monotonic()
            try:
                model(torch.ones(1, 8)).sum().backward()
            except RuntimeError as error:
                return f"{time.monotonic() - begun:.1f} {error}"
        return "nothing happened"

    with start_ranks(2, train) as ranks:
        outcome = ranks.wait(60)[0]
    seconds, _, message = outcome.value.partition(" ")
    assert float(seconds) < 10
    assert "rank 1 on " in message, message


def test_a_receive_from_a_frozen_rank_says_so() -> None:
    def wait(rank: int) -> str:
        import spark_estimator.torch.process_group  # noqa: F401

        dist.init_process_group("spark_estimator", timeout=timedelta(seconds=2))
        if rank == 1:
            dist.send(torch.ones(2), 0, tag=4)
            dist.barrier()
            os.kill(os.getpid(), signal.SIGSTOP)
            return ""
        dist.barrier()
        with pytest.raises(dist.DistBackendError) as caught:
            dist.recv(torch.ones(3), 1, tag=3)
        print("told", flush=True)
        return str(caught.value)

    with start_ranks(2, wait, environ={"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.5"}) as ranks:
        ranks.await_output(0, "told")
        ranks.kill(1)
        outcome = ranks.wait(60)[0]
    expected = (
        r"for a message of rank 1 \(host .*\) \(tag 3, float32 \[3\]\)\. .*"
        r"Other messages have come: tag 4 \(float32 \[2\]\) of rank 1\. .*sender is busy or frozen"
    )
    assert re.search(r"stalled: rank 0 has waited 0\.\d+ seconds " + expected, outcome.output), outcome.output
    assert re.search(r"torch\.distributed\.recv on rank 0: rank 0 has waited 2 seconds " + expected, outcome.value)
    assert "Raise the time-out" in outcome.value


def test_a_dead_peer_ends_a_collective_and_a_receive() -> None:
    @in_group
    def call(rank: int) -> list[object]:
        if rank == 1:
            dist.recv(torch.empty(1), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        waiting = dist.irecv(torch.empty(1), 1)
        dist.send(torch.ones(1), 1)
        errors: list[object] = []
        for wait in (waiting.wait, dist.barrier, lambda: dist.send(torch.ones(1), 1)):
            with pytest.raises(RuntimeError) as caught:
                for _ in range(100):  # sent data may be in the kernel before the other end is known to be lost
                    wait()
            errors.append(caught.value)
        return errors

    with start_ranks(2, call) as ranks:
        errors = ranks.wait(60)[0].value
    assert all(isinstance(error, PeerLostError) for error in errors), errors
    assert all("rank 1 " in str(error) for error in errors), errors


def test_a_message_for_which_there_is_no_memory_is_named(two_ranks: RankPool) -> None:
    """Not as a wait for a sender that is fine, which ends at the time-out."""

    @in_group
    def check(rank: int) -> None:
        count = 256 << 20
        if rank == 0:
            with pytest.raises(PeerLostError, match="lost rank 1"):
                dist.send(torch.zeros(count, dtype=torch.uint8), 1, tag=1)
            dist.barrier()
            return
        limits = resource.getrlimit(resource.RLIMIT_AS)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + count // 2, limits[1]))
        try:
            with pytest.raises(PeerLostError, match=rf"rank 1 has no memory for its message of {count} bytes \(uint8 "):
                dist.recv(torch.zeros(1), 0, tag=2)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        dist.barrier()

    two_ranks.run(check)
