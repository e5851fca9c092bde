"""The ranks' half of a measurement: connects to the controller and answers its commands; see ``turns``."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path


def answer_commands(path: Path, rank: int, size: int, answer: Callable[[str], str]) -> None:
    """Introduces this rank and answers until the controller says that it is enough, or goes.

    Args:
        path: of the socket on which the controller listens.
        rank, size: of this process in its group.
        answer: what to say to a command, both without the end of line.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
        with connection.makefile("rw", encoding="utf-8") as conversation:
            conversation.write(f"rank {rank} {size}\n")
            conversation.flush()
            for line in conversation:
                if line.strip() == "quit":
                    break
                conversation.write(answer(line) + "\n")
                conversation.flush()
