"""The native engine behind its Python class: requests, results, counters, timeline and end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_estimator import _native
from spark_estimator._native import DType, Op, Peer, Status
from spark_estimator.collectives.call import Call, Tensor
from spark_estimator.collectives.connections.connection import RankGroup
from spark_estimator.collectives.connections.segments import create_segment
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.membership import _make_config
from spark_estimator.collectives.rendezvous import Topology
from spark_estimator.collectives.requests import submit
from spark_estimator.env import Settings
from spark_estimator.errors import HorovodInternalError, ShutDownError


def is_open(fd: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(fd)
        return True
    return False


class Owner:
    """Owns memory; can be referenced weakly."""


def barrier(engine: Engine, name: str = "meet", keep: object = None) -> int:
    """The number of a barrier that this rank has submitted and forgotten."""
    handle = submit(engine, Call(Op.BARRIER, name), [], keep)
    number = handle._number
    del handle
    return number


def test_numbers_of_the_ranks(two_engines: list[Engine]) -> None:
    assert [engine.rank for engine in two_engines] == [0, 1]
    assert [engine.ranks for engine in two_engines] == [(0, 1), (0, 1)]
    assert {engine.size for engine in two_engines} == {2}


def test_a_request_is_polled_and_waited_for(two_engines: list[Engine]) -> None:
    first, second = two_engines
    handle = submit(first, Call(Op.BARRIER, "meet"), [], None)
    assert first.poll(handle._number) is Status.IN_PROGRESS
    assert first.wait(handle._number, 0.01) is Status.IN_PROGRESS
    submit(second, Call(Op.BARRIER, "meet"), [], None).wait()
    assert first.wait(handle._number, 60) is Status.OK


def test_a_forgotten_request_keeps_its_memory_until_it_is_done(two_engines: list[Engine]) -> None:
    first, second = two_engines
    owner = Owner()
    alive = weakref.ref(owner)
    number = barrier(first, keep=owner)
    del owner
    gc.collect()
    assert alive() is not None
    submit(second, Call(Op.BARRIER, "meet"), [], None).wait()
    assert first.wait(number, 60) is Status.OK
    first._detached.release_done(first)
    gc.collect()
    assert alive() is None


def test_counters_by_name(single_engine: Engine) -> None:
    before = single_engine.read_counter("requests")
    submit(single_engine, Call(Op.BARRIER, "meet"), [], None).wait()
    assert single_engine.counters()["requests"] == before + 1
    assert single_engine.read_counter("no_such_counter") == -1


def test_what_the_engine_describes(single_engine: Engine) -> None:
    submit(single_engine, Call(Op.BARRIER, "meet"), [], None).wait()
    assert "meet" in single_engine.describe("flight_recorder")
    with pytest.raises(ValueError, match=r"."):
        single_engine.describe("weather")


def test_shared_memory_is_zeroed_and_is_given_back(two_engines: list[Engine]) -> None:
    address = two_engines[0].allocate_shared(1000)
    memory = (ctypes.c_ubyte * 1000).from_address(address)
    assert bytes(memory) == bytes(1000)
    two_engines[0].free_shared(address)
    assert two_engines[0].allocate_shared(1000) == address


def test_one_timeline_at_a_time(single_engine: Engine, tmp_path: Path) -> None:
    path = str(tmp_path / "timeline.json")
    single_engine.start_timeline(path, mark_cycles=False)
    with pytest.raises(ValueError, match="timeline"):
        single_engine.start_timeline(path, mark_cycles=False)
    submit(single_engine, Call(Op.BARRIER, "meet"), [], None).wait()
    single_engine.stop_timeline()
    single_engine.stop_timeline()
    names = {event["name"] for event in json.loads(Path(path).read_text())}
    assert "BARRIER" in names


def test_one_gpu_in_a_group(single_engine: Engine) -> None:
    assert single_engine.gpu.claim(3) and single_engine.gpu.claim(3)
    assert not single_engine.gpu.claim(0)


def test_failed_gpu_requests_keep_their_memory(single_engine: Engine) -> None:
    owners = [Owner(), Owner()]
    alive = [weakref.ref(owner) for owner in owners]
    single_engine.gpu.hold(owners.pop(0), HorovodInternalError("a kernel failed"))
    single_engine.gpu.hold(owners.pop(0), ValueError("it never came to the GPU"))
    gc.collect()
    assert [reference() is not None for reference in alive] == [True, False]


def test_the_last_ops_are_logged_once_after_a_failure(single_engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    submit(single_engine, Call(Op.BARRIER, "meet"), [], None).wait()
    with caplog.at_level(logging.WARNING, "spark_estimator"):
        single_engine.report_failure(Status.MISMATCH)
        assert not caplog.records, "the caller's own mistake"
        single_engine.report_failure(Status.PEER_LOST)
        single_engine.report_failure(Status.PEER_LOST)
    [record] = caplog.records
    assert "recorded operations:" in record.getMessage() and "meet" in record.getMessage()


def test_shutdown_fails_what_is_pending_and_may_be_repeated(two_engines: list[Engine]) -> None:
    handle = submit(two_engines[0], Call(Op.BARRIER, "meet"), [], None)
    calls: list[str] = []
    two_engines[0].at_end.append(lambda: calls.append("end"))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda engine: engine.shutdown(), two_engines))
    with pytest.raises(ShutDownError):
        handle.wait()
    two_engines[0].shutdown()
    assert calls == ["end"]
    with pytest.raises(ShutDownError):
        submit(two_engines[0], Call(Op.BARRIER, "again"), [], None)


def test_in_a_forked_child_every_use_raises(single_engine: Engine) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            single_engine.abandon_after_fork()
            single_engine.poll(1)
        except HorovodInternalError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    array = (ctypes.c_float * 2)(1, 2)
    address = ctypes.addressof(array)
    tensor = Tensor(address, address, DType.FLOAT32, (2,))
    submit(single_engine, Call(Op.ALLREDUCE, "sum", _native.ReduceOp.SUM), [tensor], array).wait()
    assert list(array) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ("a connection is missing", "rank 2 lacks a connection"),
        ("a segment is none", "shared segment"),
        ("the last peer has ended", "was lost while the job was starting"),
    ],
)
def test_an_engine_that_is_not_created_closes_what_it_was_given(flaw: str, says: str) -> None:
    with contextlib.ExitStack() as stack:
        peers = []
        for rank in (1, 2):
            ends = [socket.socketpair() for _ in range(2)]
            for _, remote in ends:
                stack.enter_context(remote)
            control, data = (local.detach() for local, _ in ends)
            peers.append(Peer.of(rank, rank, control, [data], create_segment(3), "host"))
        if flaw == "a connection is missing":
            os.close(peers[1].control_fd)
            peers[1].control_fd = -1
        elif flaw == "a segment is none":
            os.close(peers[1].segment_fd)
            peers[1].segment_fd = os.open(os.devnull, os.O_RDONLY)
        else:
            stack.close()
        config = _make_config(
            Settings(start_timeout_seconds=30),
            Topology.of(["a"] * 3, 0),
            RankGroup.job(3),
            "a",
            create_segment(3),
            encrypted=False,
        )
        own_fds = {config.own_segment_fd, *(fd for peer in peers for fd in peer.descriptors)} - {-1}
        assert all(map(is_open, own_fds))
        with pytest.raises((HorovodInternalError, ValueError), match=says):
            Engine(config, peers)
        assert not any(map(is_open, own_fds))
