"""How a command line of ours ends when whoever reads what it prints has gone, as ``| head`` does."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec, TextIO, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Of a program that SIGPIPE ended, as a shell tells it.
UNREAD_STATUS = 128 + signal.SIGPIPE


def ends_with_its_reader(main: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A ``main`` that exits with `UNREAD_STATUS` and without a word once nobody reads its output any more.

    Not by the signal itself: Python ignores it for the sake of sockets, and a launcher has ranks to end first.
    """

    @functools.wraps(main)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            try:
                return main(*args, **kwargs)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # here, not at the interpreter's end, which would complain
        except BrokenPipeError:
            if not discard_unread():
                raise  # another pipe's
            sys.exit(UNREAD_STATUS)

    return run


def discard_unread() -> bool:
    """Whether stdout or stderr is read by nobody any more; what is written there goes nowhere from now on."""
    unread = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _unread(stream)]
    for stream in unread:
        _discard(stream)
    return bool(unread)


def _unread(stream: TextIO) -> bool:
    """Whether a stream leads into a pipe, socket or terminal that nobody reads."""
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor, or is closed
        poll.register(stream.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    return False


def _discard(stream: TextIO) -> None:
    """What is left of a stream's buffer goes nowhere when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
