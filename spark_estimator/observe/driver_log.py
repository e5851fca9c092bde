"""Messages from a rank to the person at the driver: `log_to_driver`, and how foreign text is made safe to print."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

MAX_MESSAGE_CHARACTERS = 4000

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_sink: Callable[[str], bool] | None = None


def log_to_driver(message: object) -> None:
    """Prints `message` at the driver, whatever the verbosity of the job; outside a job it is printed here.

    Args:
        message: its text is cut at `MAX_MESSAGE_CHARACTERS` characters.
    """
    text = str(message)[:MAX_MESSAGE_CHARACTERS]
    if _sink is None or not _sink(text):
        print(text, flush=True)


def set_sink(sink: Callable[[str], bool] | None) -> None:
    """Says where this process's messages go; the worker program calls it.

    Args:
        sink: takes one message and says whether it could; None: they are printed.
    """
    global _sink
    _sink = sink


def printable(text: str) -> str:
    r"""`text` with every control character but tab and newline written as ``\xNN``.

    What comes over a network must not be able to steer the terminal that it is printed on.
    """
    return "\n".join(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line) for line in text.split("\n"))


def print_line(rank: int, stream: str, text: str) -> None:
    """Prints one line of a rank's output as Horovod does, ``[rank]<stream>:text``, on the stream of that name.

    Nothing is flushed: whoever prints many lines does that when there is a pause.
    """
    print(f"[{rank}]<{stream}>:{text}", file=sys.stderr if stream == "stderr" else sys.stdout)


def print_message(rank: int, text: str) -> None:
    """Prints what a rank gave to `log_to_driver`; not flushed."""
    print(f"[{rank}] {text}")
