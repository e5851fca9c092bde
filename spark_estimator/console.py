"""Ends a command quietly if the reader of its output exits first, as in ``horovodrun ... | head``."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import sys
from collections.abc import Callable
from typing import ParamSpec, TextIO, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: The exit status that a shell reports for a program ended by SIGPIPE.
UNREAD_STATUS = 128 + 13  # a name that Windows does not have


def end_with_reader(main: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Have ``main`` exit with `UNREAD_STATUS`, without a message, once the reader of its output has exited.

    It does not exit by SIGPIPE: Python ignores that signal, which sockets raise too, and a launcher must stop its
    ranks first.
    """

    @functools.wraps(main)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            try:
                return main(*args, **kwargs)
            finally:
                for stream in (sys.stdout, sys.stderr):
                    _flush(stream)
        except BrokenPipeError:
            if not discard_unread():
                raise  # of another pipe
            sys.exit(UNREAD_STATUS)

    return run


def _flush(stream: TextIO | None) -> None:
    """Flush a stream: at the interpreter's exit, a failed flush prints a traceback and changes the exit status.

    Raises:
        BrokenPipeError: its reader has exited.
    """
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:  # what is lost has been reported
        _discard(stream)


def discard_unread() -> bool:
    """Return whether stdout or stderr has lost its reader. Later output to such a stream is discarded."""
    unread = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream)]
    for stream in unread:
        _discard(stream)
    return bool(unread)


def _has_no_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe, socket or terminal without a reader."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no descriptor, closed, or Windows without poll()
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    return False


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, so that the interpreter can flush its buffer at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
