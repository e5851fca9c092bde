"""A rank's side of a measurement: connects to the controller and answers its commands; see ``interleaved``."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path


def answer_commands(path: Path, rank: int, size: int, answer: Callable[[str], str]) -> None:
    """Registers this rank and answers commands until the controller sends ``quit`` or disconnects.

    Args:
        path: the socket on which the controller listens.
        rank, size: rank of this process, and size of its group.
        answer: returns the answer to a command, both without the end of line.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8") as stream:
            stream.write(f"rank {rank} {size}\n")
            stream.flush()
            for line in stream:
                if line.strip() == "quit":
                    break
                stream.write(answer(line) + "\n")
                stream.flush()
