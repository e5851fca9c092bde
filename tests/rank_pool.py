"""Ranks that stay alive between tests, because starting them takes longer than most of what is tested."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import cloudpickle

from tests.ranks import Outcome, Ranks, RanksFailedError, _pickled, start_ranks


class RankPool:
    """`size` ranks that call functions. After a rank has hung, died or failed unexpectedly the pool is not usable.

    Args:
        size: number of ranks.
        call: makes each call, in the rank, as ``call(function, rank, *args)``; to be importable there.
        environ: variables for the ranks, over this process's.
    """

    def __init__(self, size: int, call: Callable[..., Any], environ: Mapping[str, str] | None = None) -> None:
        self.usable = True
        self._folder = tempfile.TemporaryDirectory(prefix="pool")
        key = secrets.token_bytes(16)
        address = str(Path(self._folder.name, "socket"))
        with Listener(address, "AF_UNIX", authkey=key) as listener:
            self.ranks: Ranks = start_ranks(size, _serve, args=(address, key, call), environ=environ)
            connections = [listener.accept() for _ in range(size)]
        self._connections: list[Connection] = sorted_by_rank(connections)

    def outcomes(self, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Outcome]:
        """What became of ``function(rank, *args)`` on each rank. Raises RanksFailedError for one that hangs or dies."""
        payload = _pickled(function, args)
        outcomes = []
        try:
            for connection in self._connections:
                connection.send_bytes(payload)
            for rank, connection in enumerate(self._connections):
                if not connection.poll(timeout):
                    raise TimeoutError
                value, error, trace = cloudpickle.loads(connection.recv_bytes())
                outcomes.append(Outcome(rank, value, error, trace, 0, ""))
        except (EOFError, OSError) as error:  # TimeoutError is an OSError
            self.usable = False
            raise RanksFailedError(f"a rank hung or died: {error!r}", self.ranks.wait(0.1)) from None
        return outcomes

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 60) -> list[Any]:
        """What ``function(rank, *args)`` returns on every rank. Raises RanksFailedError when a rank raises."""
        outcomes = self.outcomes(function, *args, timeout=timeout)
        if not all(outcome.returned for outcome in outcomes):
            self.usable = False  # the ranks may be in different rounds: each later test would wait for its time-out
            raise RanksFailedError("these ranks raised", [outcome for outcome in outcomes if not outcome.returned])
        return [outcome.value for outcome in outcomes]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.ranks.close()
        self._folder.cleanup()


def sorted_by_rank(connections: list[Connection]) -> list[Connection]:
    return [connection for _, connection in sorted((connection.recv(), connection) for connection in connections)]


def _serve(rank: int, address: str, key: bytes, call: Callable[..., Any]) -> None:
    import traceback

    connection = Client(address, "AF_UNIX", authkey=key)
    connection.send(rank)
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        value, error, trace = None, None, ""
        try:
            function, args = cloudpickle.loads(payload)
            value = call(function, rank, *args)
        except BaseException as raised:  # pytest's own failures are no Exceptions
            error, trace = raised, traceback.format_exc()
        try:
            answer = cloudpickle.dumps((value, error, trace))
        except Exception:
            answer = cloudpickle.dumps((None, RuntimeError(repr(error or value)), trace or traceback.format_exc()))
        connection.send_bytes(answer)
