"""Connecting ranks, up to the engine: ranks as threads of this process, each with its own connector."""

from __future__ import annotations

import dataclasses
import errno
import gc
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest

from spark_estimator._native import Peer
from spark_estimator.collectives.connections import connector
from spark_estimator.collectives.connections.connection import CONTROL, DATA, Connection, RankGroup, tune
from spark_estimator.collectives.connections.connector import Connections, Connector
from spark_estimator.collectives.rendezvous import Rendezvous, make_local_rendezvous
from spark_estimator.env import Settings
from spark_estimator.errors import AuthenticationError, HorovodInternalError, PeerLostError, ShutDownError
from spark_estimator.security.authentication import RefusedError, connect

PATIENT = Settings(start_timeout_seconds=30)
IMPATIENT = Settings(start_timeout_seconds=1)


def memory(_size: int) -> int:
    return os.memfd_create("segment")


@contextmanager
def connectors(
    n: int,
    change: Callable[[Rendezvous], Rendezvous] = lambda rendezvous: rendezvous,
    make_segment: Callable[[int], int] = memory,
) -> Iterator[list[Connector]]:
    job = make_local_rendezvous(n)
    for _, endpoint in job:
        endpoint.tcp.detach()
        assert endpoint.local is not None
        endpoint.local.detach()
    boards = [Connector(change(rendezvous), make_segment) for rendezvous, _ in job]
    try:
        yield boards
    finally:
        for board in boards:
            board.close()


def connect_all(boards: Sequence[Connector], settings: Settings = PATIENT, round_: int = 1) -> list[Connections]:
    with ThreadPoolExecutor(len(boards)) as pool:
        futures = [pool.submit(board.connect_all, round_, settings) for board in boards]
        return [future.result(60) for future in futures]


def connect_group(boards: Sequence[Connector], round_: int, group: RankGroup) -> list[Connections]:
    with ThreadPoolExecutor(len(group.ranks)) as pool:
        futures = [pool.submit(boards[rank].connect_all, round_, PATIENT, group) for rank in group.ranks]
        return [future.result(60) for future in futures]


def talks(first: int, second: int) -> bool:
    """Whether two descriptors are the ends of one connection."""
    os.write(first, b"ping")
    answer = os.read(second, 4)
    os.write(second, b"pong")
    return answer == b"ping" and os.read(first, 4) == b"pong"


def is_tcp(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as sock:
        return sock.family != socket.AF_UNIX


def data_fds(peer: Peer) -> list[int]:
    fds: list[int] = peer.data_fds[: peer.data_count]
    return fds


def check(connections: Sequence[Connections], *, tcp: bool, shared: bool) -> None:
    for rank, member in enumerate(connections):
        assert [peer.rank for peer in member.peers] == [other for other in range(len(connections)) if other != rank]
        for peer in member.peers:
            other = next(back for back in connections[peer.rank].peers if back.rank == rank)
            assert talks(peer.control_fd, other.control_fd)
            assert peer.data_count == other.data_count
            for data, back in zip(data_fds(peer), data_fds(other), strict=True):
                assert talks(data, back)
                assert is_tcp(peer.control_fd) is is_tcp(data) is tcp
            assert peer.name
            if shared:
                assert os.path.sameopenfile(peer.segment_fd, connections[peer.rank].segment_fd)
            else:
                assert peer.segment_fd == -1
            for fd in (peer.control_fd, *data_fds(peer), *([peer.segment_fd] if shared else [])):
                assert not os.get_inheritable(fd)
    for member in connections:
        member.close()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_rank_is_connected_with_every_other(n: int) -> None:
    with connectors(n) as boards:
        check(connect_all(boards), tcp=False, shared=True)


def test_without_shared_memory_all_is_tcp() -> None:
    with connectors(3) as boards:
        connections = connect_all(boards, dataclasses.replace(PATIENT, shared_memory=False))
        assert all(member.segment_fd == -1 for member in connections)
        check(connections, tcp=True, shared=False)


def test_one_rank_without_shared_memory() -> None:
    with connectors(2) as boards, ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(board.connect_all, 1, dataclasses.replace(PATIENT, shared_memory=shared))
            for board, shared in zip(boards, (True, False), strict=True)
        ]
        check([future.result(60) for future in futures], tcp=False, shared=False)


def apart(rendezvous: Rendezvous) -> Rendezvous:
    """Each rank on another host."""
    peers = tuple(dataclasses.replace(peer, host_id=f"host {peer.rank}") for peer in rendezvous.peers)
    return dataclasses.replace(rendezvous, peers=peers)


def test_other_hosts_are_reached_by_tcp() -> None:
    with connectors(3, apart) as boards:
        check(connect_all(boards), tcp=True, shared=False)


def test_several_connections_carry_the_data_between_hosts() -> None:
    with connectors(3, apart) as boards:
        connections = connect_all(boards, dataclasses.replace(PATIENT, connections=8))
        assert all(peer.data_count == 8 for member in connections for peer in member.peers)
        check(connections, tcp=True, shared=False)
    with connectors(2) as boards:  # on one host there is no network that limits them
        check(connect_all(boards, dataclasses.replace(PATIENT, connections=8)), tcp=False, shared=True)


def test_the_lower_rank_decides_how_many_connections_there_are() -> None:
    with connectors(3, apart) as boards, ThreadPoolExecutor(3) as pool:
        futures = [
            pool.submit(board.connect_all, 1, dataclasses.replace(PATIENT, connections=number))
            for board, number in zip(boards, (2, 5, 1), strict=True)
        ]
        connections = [future.result(60) for future in futures]
        assert [[peer.data_count for peer in member.peers] for member in connections] == [[2, 2], [2, 5], [2, 5]]
        check(connections, tcp=True, shared=False)


def test_a_unix_socket_that_cannot_be_reached_ends_in_tcp() -> None:
    def elsewhere(rendezvous: Rendezvous) -> Rendezvous:
        peers = tuple(dataclasses.replace(peer, local_name="spark_estimator/nobody") for peer in rendezvous.peers)
        return dataclasses.replace(rendezvous, peers=peers)

    with connectors(2, elsewhere) as boards:
        check(connect_all(boards), tcp=True, shared=False)


def test_without_memory_to_share_there_is_a_warning_and_no_segment(caplog: pytest.LogCaptureFixture) -> None:
    def none_left(_size: int) -> int:
        raise HorovodInternalError("memfd_create: Cannot allocate memory")

    with connectors(2, make_segment=none_left) as boards:
        check(connect_all(boards), tcp=False, shared=False)
    assert "has no shared memory" in caplog.text


def test_rounds_follow_one_another() -> None:
    with connectors(2) as boards:
        for round_ in range(1, 5):
            check(connect_all(boards, round_=round_), tcp=False, shared=True)
        with pytest.raises(ValueError, match="round 4 is over"):
            boards[0].connect_all(4, PATIENT)


def test_a_faster_rank_is_kept_waiting_for_its_round() -> None:
    with connectors(2) as boards, ThreadPoolExecutor(2) as pool:
        check(connect_all(boards), tcp=False, shared=True)
        first = pool.submit(boards[0].connect_all, 2, PATIENT)
        while len(boards[1]._sockets) < 2:
            assert not first.done()
        second = pool.submit(boards[1].connect_all, 2, PATIENT)
        check([first.result(60), second.result(60)], tcp=False, shared=True)


def knock(board: Connector, connection: Connection, *, tag: bytes | None = None) -> None:
    """Connects with the right key for `connection`."""
    facts = board.rendezvous.peers[board.rendezvous.rank]
    with socket.create_connection((facts.address, facts.port), timeout=60) as sock:
        connect(sock, board.rendezvous.key, connection.pack(tag or board._tag))


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        (Connection(1, 0, 1, CONTROL), "a round that is over"),
        (Connection(4, 0, 1, CONTROL), "a round too far ahead"),
        (Connection(3, 0, 2, CONTROL), "another rank"),
        (Connection(3, 1, 1, CONTROL), "from itself"),
        (Connection(3, 2, 1, CONTROL), "from a higher rank"),
        (Connection(3, 4_000_000_000, 1, DATA), "from a rank that is none"),
        (Connection(3, 0, 1, 7), "for no purpose"),
        (Connection(3, 0, 1, DATA, part=2, parts=2), "a part that there is not"),
        (Connection(3, 0, 1, CONTROL, part=1, parts=2), "a second control connection"),
    ],
)
def test_who_holds_the_key_must_also_come_at_the_right_time_and_place(connection: Connection, why: str) -> None:
    with connectors(2) as boards:
        for round_ in (1, 2):
            for member in connect_all(boards, round_=round_):
                member.close()
        with pytest.raises(RefusedError):
            knock(boards[1], connection)
        knock(boards[1], Connection(3, 0, 1, CONTROL))


def test_groups_connect_beside_the_job_and_in_any_overlap() -> None:
    sizes = []

    def sized(local_size: int) -> int:
        sizes.append(local_size)
        return memory(local_size)

    with connectors(4, make_segment=sized) as boards:
        check(connect_all(boards), tcp=False, shared=True)
        assert sizes == [4] * 4
        sizes.clear()
        for number, ranks in enumerate([(1, 3), (0, 1, 3), (2,), (1, 3)], 1):
            connections = connect_group(boards, 1, RankGroup(number, ranks))
            assert [(member.rank, member.size) for member in connections] == [
                (rank, len(ranks)) for rank in range(len(ranks))
            ]
            for member in connections:
                assert [peer.global_rank for peer in member.peers] == [r for r in ranks if r != ranks[member.rank]]
            check(connections, tcp=False, shared=len(ranks) > 1)
        assert sorted(sizes) == [2, 2, 2, 2, 3, 3, 3]
        check(connect_all(boards, round_=2), tcp=False, shared=True)
        check(connect_group(boards, 2, RankGroup(1, (0, 2))), tcp=False, shared=True)


def test_two_groups_without_a_common_rank_connect_at_once() -> None:
    with connectors(4) as boards:
        check(connect_all(boards), tcp=False, shared=True)
        with ThreadPoolExecutor(2) as pool:
            futures = [
                pool.submit(connect_group, boards, 1, group) for group in (RankGroup(2, (2, 3)), RankGroup(1, (0, 1)))
            ]
            for future in futures:
                check(future.result(60), tcp=False, shared=True)


@pytest.mark.parametrize("stage", [(1, 0), (1, 1), (1, 2)])
def test_a_group_that_is_over_cannot_be_joined(stage: tuple[int, int]) -> None:
    with connectors(2) as boards:
        for member in [*connect_all(boards), *connect_group(boards, 1, RankGroup(2, (0, 1)))]:
            member.close()
        with pytest.raises(RefusedError):
            knock(boards[1], Connection(stage[0], 0, 1, CONTROL, stage[1]))
        knock(boards[1], Connection(1, 0, 1, CONTROL, 3))
        knock(boards[1], Connection(2, 0, 1, CONTROL, 0))


def test_another_jobs_context_is_refused() -> None:
    with connectors(2) as boards, pytest.raises(RefusedError):
        knock(boards[1], Connection(1, 0, 1, CONTROL), tag=bytes(16))


def test_a_context_of_another_form_is_refused() -> None:
    with connectors(2) as boards:
        facts = boards[1].rendezvous.peers[1]
        with socket.create_connection((facts.address, facts.port), timeout=60) as sock, pytest.raises(RefusedError):
            connect(sock, boards[1].rendezvous.key, b"driver log")


def test_a_missing_rank_is_named_by_those_that_wait_for_it() -> None:
    with connectors(3) as boards, ThreadPoolExecutor(2) as pool:
        # Rank 1 listens (the kernel accepts for it), but neither answers nor calls connect_all.
        boards[1]._handshake_server.before_fork()
        futures = [pool.submit(boards[rank].connect_all, 1, IMPATIENT) for rank in (0, 2)]
        port = boards[1].rendezvous.peers[1].port
        for future in futures:
            with pytest.raises(
                PeerLostError, match=rf"rank 1 \(host .*127\.0\.0\.1:{port}\).* within 1 seconds"
            ) as raised:
                future.result(60)
            assert "HOROVOD_START_TIMEOUT" in str(raised.value)
        assert all(not boards[rank]._sockets for rank in (0, 2))
        boards[1]._handshake_server.after_fork_in_parent()


def test_a_rank_that_has_died_is_named_at_once() -> None:
    with connectors(3) as boards:
        boards[1].close()
        with pytest.raises(PeerLostError, match=r"rank 1 \(host .*its process has ended"):
            boards[0].connect_all(1, Settings(start_timeout_seconds=1000))


def test_a_rank_that_answers_but_does_not_call_is_named() -> None:
    with connectors(2) as boards, pytest.raises(PeerLostError, match=r"rank 0 \(host .*did not connect within 1 sec"):
        boards[1].connect_all(1, IMPATIENT)


def test_a_rank_with_another_key_is_named_at_once() -> None:
    keys = iter([bytes(32), bytes(range(32))])
    with (
        connectors(2, lambda rendezvous: dataclasses.replace(rendezvous, key=next(keys))) as boards,
        pytest.raises(AuthenticationError, match=r"rank 1 \(host"),
    ):
        boards[0].connect_all(1, Settings(start_timeout_seconds=100))


def test_a_rank_that_has_given_up_a_round_refuses_it() -> None:
    with connectors(2) as boards:
        with pytest.raises(PeerLostError):
            boards[1].connect_all(1, IMPATIENT)
        with pytest.raises(PeerLostError, match=r"rank 1 .*serves another job, rank or round"):
            boards[0].connect_all(1, PATIENT)
        # The next round is for both again.
        check(connect_all(boards, round_=2), tcp=False, shared=True)


def test_a_descriptor_that_was_not_inherited_is_told() -> None:
    rendezvous, endpoint = make_local_rendezvous(1)[0]
    endpoint.close()
    with pytest.raises(HorovodInternalError, match="did not inherit its listening socket"):
        Connector(dataclasses.replace(rendezvous, listen_fd=999_999))


# --- overlays ---------------------------------------------------------------------------------------------------------

OVERLAY = Settings(start_timeout_seconds=30, mesh_ranks=4)


def close_all(members: Sequence[Connections]) -> None:
    for member in members:
        member.close()


@pytest.mark.parametrize("change", [lambda rendezvous: rendezvous, apart], ids=["one host", "hosts"])
def test_in_an_overlay_neighbours_have_control_connections(change: Callable[[Rendezvous], Rendezvous]) -> None:
    with connectors(9, change) as boards:
        members = connect_all(boards, OVERLAY)
        for rank, member in enumerate(members):
            assert member.late is not None
            assert [peer.rank for peer in member.peers] == [other for other in range(9) if other != rank]
            for peer in member.peers:
                assert peer.data_count == 0 and peer.name
                back = next(back for back in members[peer.rank].peers if back.rank == rank)
                if (peer.rank - rank) % 9 in (1, 2, 4, 5, 7, 8):
                    assert talks(peer.control_fd, back.control_fd)
                else:
                    assert (peer.control_fd, back.control_fd) == (-1, -1)
                if change is apart:
                    assert peer.segment_fd == -1
                else:
                    assert os.path.sameopenfile(peer.segment_fd, members[peer.rank].segment_fd)
        close_all(members)


class PlayedEngine:
    """What an engine wants, and what it gets."""

    def __init__(self) -> None:
        self.wanted: queue.Queue[int] = queue.Queue()
        self.got: queue.Queue[Peer | tuple[int, str]] = queue.Queue()
        self.is_shut_down = threading.Event()

    def await_wanted_peer(self, seconds: float) -> int | None:
        with suppress(queue.Empty):
            return self.wanted.get(timeout=min(seconds, 0.05))
        if self.is_shut_down.is_set():
            raise ShutDownError("over")
        return None

    def connect_peer(self, peer: Peer) -> None:
        self.got.put(peer)

    def refuse_peer(self, rank: int, why: str) -> None:
        self.got.put((rank, why))

    def next_peer(self) -> Peer:
        got = self.got.get(timeout=30)
        assert isinstance(got, Peer), got
        return got


@contextmanager
def played_engines(members: Sequence[Connections]) -> Iterator[list[PlayedEngine]]:
    engines = [PlayedEngine() for _ in members]
    try:
        for engine, member in zip(engines, members, strict=True):
            assert member.late is not None
            member.late.attach(engine)  # type: ignore[arg-type]
        yield engines
    finally:
        for engine in engines:
            engine.is_shut_down.set()
        close_all(members)


def test_data_connections_are_made_on_first_use() -> None:
    settings = dataclasses.replace(OVERLAY, connections=3)
    with connectors(9, apart) as boards:
        members = connect_all(boards, settings)
        with played_engines(members) as engines:
            for rank in (3, 6, 1):
                engines[0].wanted.put(rank)
            engines[5].wanted.put(6)
            for lower, higher in ((0, {3, 6, 1}), (5, {6})):
                for _ in range(len(higher)):
                    peer = engines[lower].next_peer()
                    higher.remove(peer.rank)
                    back = engines[peer.rank].next_peer()
                    if back.rank != lower:  # rank 6 has two
                        engines[peer.rank].got.put(back)
                        back = engines[peer.rank].next_peer()
                    assert (back.rank, back.data_count, peer.data_count) == (lower, 3, 3)
                    for data, other in zip(data_fds(peer), data_fds(back), strict=True):
                        assert talks(data, other) and is_tcp(data)
                        os.close(data)
                        os.close(other)


def test_connections_that_arrive_before_the_engine_are_kept_for_it() -> None:
    with connectors(6) as boards:
        members = connect_all(boards, OVERLAY)
        engine = PlayedEngine()
        late = [member.late for member in members]
        assert late[0] is not None and late[3] is not None
        late[0].attach(engine)  # type: ignore[arg-type]
        engine.wanted.put(3)
        os.close(data_fds(engine.next_peer())[0])
        slow = PlayedEngine()
        late[3].attach(slow)  # type: ignore[arg-type]
        peer = slow.next_peer()
        assert (peer.rank, peer.data_count) == (0, 1)
        os.close(data_fds(peer)[0])
        engine.is_shut_down.set()
        slow.is_shut_down.set()
        close_all(members)


def test_a_rank_that_cannot_be_connected_later_is_named() -> None:
    with connectors(6) as boards:
        members = connect_all(boards, OVERLAY)
        with played_engines(members) as engines:
            boards[3].close()
            for rank in (1, 3):
                engines[0].wanted.put(rank)
            answers = [engines[0].got.get(timeout=30)]
            while isinstance(answers[-1], Peer):
                answers.append(engines[0].got.get(timeout=30))
            rank, why = answers[-1]
            assert rank == 3
            assert "the first data for other ranks on rank 0" in why and "rank 3" in why and "more:" not in why
            # The engine is broken, but this rank still takes what others bring, and makes what it is asked for.
            engines[0].wanted.put(2)
            assert engines[0].next_peer().rank in (1, 2)
            for engine in engines:
                while not engine.got.empty():
                    engine.got.get()


def test_without_a_thread_the_connections_are_made_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name.endswith("connects"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    with connectors(3) as boards:
        check(connect_all(boards), tcp=False, shared=True)


def test_an_engine_that_is_over_gets_no_more_connections() -> None:
    before = open_descriptors()
    with connectors(6) as boards:
        members = connect_all(boards, OVERLAY)
        with pytest.raises(AuthenticationError):
            close_all(members)
            knock(boards[3], Connection(1, 0, 3, DATA))
        members = connect_all(boards, OVERLAY, round_=2)
        knock(boards[3], Connection(2, 0, 3, DATA))
        close_all(members)
    await_closed(before)


@pytest.mark.parametrize("overlay", [0, 1, 5])
def test_ranks_with_different_settings_are_named(overlay: int) -> None:
    with connectors(6) as boards, ThreadPoolExecutor(6) as pool:
        calls = [
            pool.submit(board.connect_all, 1, dataclasses.replace(IMPATIENT, mesh_ranks=4 if rank == overlay else 6))
            for rank, board in enumerate(boards)
        ]
        errors = [call.exception(60) for call in calls]
        assert any(
            isinstance(error, HorovodInternalError)
            and "SPARK_ESTIMATOR_MESH_RANKS is" in str(error)
            and "Set it to the same value on all ranks." in str(error)
            for error in errors
        ), errors
        for call in calls:
            if call.exception() is None:
                call.result().close()


def test_a_fork_between_late_connections_leaves_the_child_none() -> None:
    with connectors(6) as boards:
        members = connect_all(boards, OVERLAY)
        with played_engines(members) as engines:
            boards[0].before_fork()
            boards[0].after_fork_in_parent()
            engines[0].wanted.put(1)
            for fd in (*data_fds(engines[0].next_peer()), *data_fds(engines[1].next_peer())):
                os.close(fd)


def open_descriptors() -> set[str]:
    """What is open, by number and what it is, without TCP connections: ranks on one host connect by Unix sockets.

    A Spark session of other tests in this process opens TCP connections with its JVM at any time, and keeps them.
    """
    gc.collect()
    result = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the folder itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if not (target.startswith("socket:") and is_connected_by_tcp(int(name))):
                result.add(f"{name} {target}")
    return result


def is_connected_by_tcp(fd: int) -> bool:
    with suppress(OSError):  # not connected, or closed in the meantime
        with socket.socket(fileno=os.dup(fd)) as sock:
            return sock.family != socket.AF_UNIX and bool(sock.getpeername())
    return False


def await_closed(before: set[str]) -> None:
    """Waits until no more is open than before: the thread that serves a connection closes its end a moment later."""
    deadline = time.monotonic() + 60
    while not open_descriptors() <= before:
        assert time.monotonic() < deadline, open_descriptors() - before
        time.sleep(0.01)


def failing_at(call: int, function: Callable[..., object]) -> Callable[..., object]:
    """`function`, whose n-th call fails; the calls before are for the peers' sockets."""
    calls = itertools.count(1)

    def fail(*args: object) -> object:
        if next(calls) == call:
            raise OSError(errno.ENOBUFS, "no buffer space")
        return function(*args)

    return fail


@pytest.mark.parametrize("call", [1, *(pytest.param(call, marks=pytest.mark.slow) for call in (2, 4))])
def test_a_peer_that_cannot_be_set_up_leaves_nothing_of_the_others(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with connectors(3) as boards, ThreadPoolExecutor(2) as pool:
        before = open_descriptors()
        others = [pool.submit(board.connect_all, 1, PATIENT) for board in boards[1:]]
        with monkeypatch.context() as patch:
            this_thread = threading.get_ident()
            tunes = failing_at(call, connector.tune)
            patch.setattr(
                connector, "tune", lambda *args: (tunes if threading.get_ident() == this_thread else tune)(*args)
            )
            with pytest.raises(OSError, match="no buffer space"):
                boards[0].connect_all(1, PATIENT)
            connections = [future.result(60) for future in others]
        for member in connections:
            # The connection with the rank that failed is at its end, and all of its descriptors are closed.
            with socket.socket(fileno=os.dup(member.peers[0].control_fd)) as sock:
                assert sock.recv(1) == b""
            member.close()
        await_closed(before)


@pytest.mark.parametrize("failing", ["memfd", "names"])
def test_whatever_fails_of_a_set_up_leaves_nothing_open(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> int:
        raise OSError(errno.EMFILE, "too many")

    with connectors(3) as boards, ThreadPoolExecutor(2) as pool:
        before = open_descriptors()
        others = [pool.submit(board.connect_all, 1, IMPATIENT) for board in boards[:2]]
        if failing == "memfd":
            boards[2]._make_segment = fail
        else:
            monkeypatch.setattr(connector, "get_peer_credentials", fail)
        with pytest.raises(OSError, match="too many"):
            boards[2].connect_all(1, PATIENT)
        for future in others:
            with suppress(OSError, PeerLostError):
                future.result(60).close()
        await_closed(before)


def test_a_peer_that_has_died_leaves_nothing_of_the_others_open() -> None:
    before = open_descriptors()
    with connectors(3) as boards:
        boards[2].close()
        with pytest.raises(PeerLostError, match="its process has ended"):
            boards[0].connect_all(1, PATIENT)
    await_closed(before)


def test_nothing_is_left_open() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(5):
        with connectors(3) as boards:
            check(connect_all(boards), tcp=False, shared=True)
            with pytest.raises(PeerLostError):
                boards[2].connect_all(2, Settings(start_timeout_seconds=0.1))
    # Fewer is fine: something of an earlier test may have been closed meanwhile.
    assert descriptors() <= before
