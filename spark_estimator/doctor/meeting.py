"""Executors of a cluster test each other: connections between all pairs of them, memory between two tasks of a host.

It is done as a job does it: a socket at an ephemeral port of the executor's address, an abstract Unix socket beside it,
and the challenge that opens every connection. One task represents each executor; each of these connects to each other
one, as either may be the lower rank in a job. Of each host two tasks, of different executors where there are such, try
to share a segment.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from spark_estimator.collectives.connections.segments import close_descriptor, create_segment, receive_descriptor
from spark_estimator.collectives.rendezvous import Endpoint, host_id
from spark_estimator.mapping import map_file
from spark_estimator.security import authentication
from spark_estimator.security.handshake_server import HandshakeServer

_MAX_THREADS = 16
_HELLO, _MEMORY = b"hello", b"memory"
_MARK_BYTES = 16

Facts = dict[str, Any]


def choose_callers(everyone: Sequence[Facts]) -> dict[str, int]:
    """Choose the lowest partition of each executor that can listen, which its report shows by a port."""
    chosen: dict[str, int] = {}
    for partition, facts in enumerate(everyone):
        if facts.get("port"):
            chosen.setdefault(facts["executor"], partition)
    return chosen


def choose_sharers(everyone: Sequence[Facts]) -> list[tuple[int, int]]:
    """Choose two partitions of each host that has two, (makes a segment, maps it): of two executors if possible."""
    hosts: dict[str, list[int]] = {}
    for partition, facts in enumerate(everyone):
        if facts.get("local_name"):
            hosts.setdefault(facts["host_id"], []).append(partition)
    pairs = []
    for first, *others in hosts.values():
        elsewhere = [other for other in others if everyone[other]["executor"] != everyone[first]["executor"]]
        if others:
            pairs.append((first, (elsewhere or others)[0]))
    return pairs


class Meeting:
    """One task's part in it. Raises OSError, ValueError: listening at that address fails.

    Args:
        address: of the executor, as Spark reports it: host:port.
        key: common to all tasks.
        seconds: for each connection.

    Attributes:
        facts: for the others; JSON.
    """

    def __init__(self, address: str, key: bytes, seconds: float) -> None:
        endpoint = Endpoint.open(address.rpartition(":")[0].strip("[]") or address)
        self._key = key
        self._timeout = timedelta(seconds=seconds)
        self.facts: Facts = {
            "executor": address,
            "host_id": host_id(),
            "address": endpoint.address,
            "port": endpoint.port,
            "local_name": endpoint.local_name,
        }
        listeners = [sock for sock in (endpoint.tcp, endpoint.local) if sock is not None]
        self._handshake_server = HandshakeServer(listeners, key, self._admit, name="doctor")

    def meet(self, everyone: Sequence[Facts], partition: int) -> Facts:
        """Try all that this task is to try.

        Returns:
            reached: executors that this one has connected to; unreached: {executor: why not}, both empty for a task
            that represents no executor; shared: whether memory could be shared, None where this task does not try;
            sharing_trouble: why not.
        """
        chosen = choose_callers(everyone)
        facts: Facts = {"reached": [], "unreached": {}, "shared": None, "sharing_trouble": ""}
        if chosen.get(self.facts["executor"]) == partition:
            waiting = [other for executor, other in chosen.items() if executor != self.facts["executor"]]
            facts |= self._connect_to([everyone[other] for other in waiting])
        for giver, taker in choose_sharers(everyone):
            if taker == partition:
                try:
                    self._take_segment(everyone[giver]["local_name"])
                    facts["shared"] = True
                except Exception as error:
                    facts |= {"shared": False, "sharing_trouble": f"{type(error).__name__}: {error}"}
        return facts

    def close(self) -> None:
        """Stop listening."""
        self._handshake_server.close()

    def _connect_to(self, others: list[Facts]) -> Facts:
        reached: list[str] = []
        unreached: dict[str, str] = {}

        def work() -> None:
            while True:
                try:
                    other = others.pop()
                except IndexError:
                    return
                address = (other["address"], other["port"])
                try:
                    authentication.dial(address, self._key, _HELLO, timeout=self._timeout)[0].close()
                    reached.append(other["executor"])
                except Exception as error:
                    unreached[other["executor"]] = f"{address[0]} port {address[1]}: {error}"

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(len(others), _MAX_THREADS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"reached": sorted(reached), "unreached": unreached}

    def _take_segment(self, local_name: str) -> None:
        """Map another task's segment and write a mark into it, which the other then reads from its own mapping."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(self._timeout.total_seconds())
            sock.connect(b"\0" + local_name.encode())
            authentication.require_same_user(sock)
            authentication.connect(sock, self._key, _MEMORY, timeout=self._timeout)
            sock.settimeout(self._timeout.total_seconds())
            segment = receive_descriptor(sock)
            if segment < 0:
                raise OSError("the other task has no segment to share; see its log")
            try:
                mark = secrets.token_bytes(_MARK_BYTES)
                with map_file(segment) as mapped:
                    mapped[-_MARK_BYTES:] = mark
                    sock.sendall(mark)
                    if sock.recv(1) != b"\1":
                        raise OSError("one mapping of a segment doesn't show data written through the other")
            finally:
                close_descriptor(segment)

    def _admit(self, sock: socket.socket, context: bytes, _origin: str, _session: object) -> None:
        if context == _MEMORY:
            threading.Thread(target=self._share_memory, args=(sock,), daemon=True).start()
        else:
            sock.close()

    def _share_memory(self, sock: socket.socket) -> None:
        """Send a segment of shared memory over a connection, and read the peer's mark in it."""
        with sock, suppress(OSError):
            sock.settimeout(self._timeout.total_seconds())
            try:
                segment = create_segment(2)
            except Exception as error:
                sock.sendall(b"\0")
                raise OSError(f"no segment: {error}") from error
            try:
                socket.send_fds(sock, [b"\1"], [segment])
                mark = b""
                while len(mark) < _MARK_BYTES:
                    received = sock.recv(_MARK_BYTES - len(mark))
                    if not received:
                        return
                    mark += received
                with map_file(segment) as mapped:
                    sock.sendall(b"\1" if mapped[-_MARK_BYTES:] == mark else b"\0")
            finally:
                close_descriptor(segment)
