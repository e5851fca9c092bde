"""Ranks that stay alive between tests, because importing PyTorch takes longer than most of what is tested here.

Each call is a membership of its own: the ranks join before it and leave after it, whatever came of it.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import cloudpickle

from tests.ranks import Outcome, Ranks, RanksFailedError, _pickled, start_ranks


class RankPool:
    """`size` ranks that call what they are given. A rank that hangs or dies takes its pool with it: make another."""

    def __init__(self, size: int) -> None:
        self.usable = True
        self._folder = tempfile.TemporaryDirectory(prefix="pool")
        key = secrets.token_bytes(16)
        address = str(Path(self._folder.name, "socket"))
        with Listener(address, "AF_UNIX", authkey=key) as listener:
            self.ranks: Ranks = start_ranks(size, _serve, args=(address, key))
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
        """What ``function(rank, *args)`` returns on every rank."""
        outcomes = self.outcomes(function, *args, timeout=timeout)
        if not all(outcome.returned for outcome in outcomes):
            raise RanksFailedError("these ranks raised", [outcome for outcome in outcomes if not outcome.returned])
        return [outcome.value for outcome in outcomes]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.ranks.close()
        self._folder.cleanup()


def sorted_by_rank(connections: list[Connection]) -> list[Connection]:
    return [connection for _, connection in sorted((connection.recv(), connection) for connection in connections)]


def _serve(rank: int, address: str, key: bytes) -> None:
    import traceback

    import torch

    import spark_estimator.torch as hvd

    torch.set_num_threads(1)
    connection = Client(address, "AF_UNIX", authkey=key)
    connection.send(rank)
    while True:
        try:
            payload = connection.recv_bytes()
        except EOFError:
            return
        value, error, trace = None, None, ""
        try:
            hvd.init()
            function, args = cloudpickle.loads(payload)
            torch.manual_seed(1)
            value = function(rank, *args)
        except BaseException as raised:  # pytest's own failures are no Exceptions
            error, trace = raised, traceback.format_exc()
        finally:
            hvd.shutdown()
        connection.send_bytes(cloudpickle.dumps((value, error, trace)))
