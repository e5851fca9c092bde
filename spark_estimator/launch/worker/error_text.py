"""Describes the exception that a function has raised on a rank, for the report on it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

from spark_estimator.errors import PeerLostError, ShutDownError, remove_links

# How gloo, which PyTorch and JAX use, reports that another process has gone.
_GLOO_LOSS = re.compile(r"\bgloo/transport/.*(?:by peer|Broken pipe)")
# Members of an exception group that a message names, and causes of one error.
_MOST_MEMBERS = 8
_MOST_CAUSES = 4


def format_error(error: BaseException) -> str:
    """Return type and message, as the last line of a traceback has them."""
    try:
        return remove_links("".join(traceback.format_exception_only(type(error), error))).strip()
    except Exception:  # a user's __str__ may fail
        return type(error).__name__


def describe_error(error: BaseException) -> str:
    """Return type and message; below, the line that raised an error without a message, and its causes.

    In an exception group, its members' types and messages follow in the same line.
    """
    causes: list[str] = []
    cause, seen = error.__cause__, {id(error)}
    while cause is not None and id(cause) not in seen and len(causes) < _MOST_CAUSES:
        seen.add(id(cause))
        causes.append(f"\n  from {_format_group(cause)}{_describe_origin(cause)}")
        cause = cause.__cause__
    return f"{_format_group(error)}{_describe_origin(error)}{''.join(causes)}"


def is_secondary(error: BaseException) -> bool:
    """Return whether an error, or each member of a group, was raised because another rank had failed."""
    for link in walk_chain(error):
        group = list_members(link)
        lost = isinstance(link, (PeerLostError, ShutDownError)) or _GLOO_LOSS.search(format_error(link))
        if lost or (group and all(map(is_secondary, group))):
            return True
    return False


def format_traceback(error: BaseException, is_own: Callable[[str], bool]) -> str:
    """Return the whole traceback, chain included, but for the first frames of files for which `is_own` holds."""
    with suppress(Exception):
        for link in walk_chain(error):
            link.__traceback__ = _skip_own_frames(link.__traceback__, is_own)
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return f"{type(error).__name__} (its traceback cannot be printed)"


def walk_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, and what it was raised from or while handling."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def list_members(error: BaseException) -> tuple[BaseException, ...]:
    """Return the members of an exception group, also of the backport for Python 3.10; else empty."""
    try:
        group = getattr(error, "exceptions", None)
    except Exception:  # a user's property may fail
        return ()
    is_group = isinstance(group, tuple) and all(isinstance(member, BaseException) for member in group)
    return tuple(group or ()) if is_group else ()


def _format_group(error: BaseException) -> str:
    group = list_members(error)
    if not group:
        return format_error(error)
    texts = [_format_member(member) for member in group[:_MOST_MEMBERS]]
    if len(group) > len(texts):
        texts.append(f"{len(group) - len(texts)} more")
    return f"{format_error(error)}: {'; '.join(texts)}"


def _format_member(error: BaseException) -> str:
    text, *causes = (_format_group(link).split("\n", 1)[0] for link in (error, error.__cause__) if link is not None)
    return f"{text} (from {causes[0]})" if causes else text


def _describe_origin(error: BaseException) -> str:
    """Return the frame that raised an error without a message, as a traceback prints it; '' for other errors."""
    with suppress(Exception):
        frames = traceback.extract_tb(error.__traceback__)
        if frames and not str(error).strip():
            frame = frames[-1]
            source = f"\n    {frame.line}" if frame.line else ""
            return f'\n  File "{frame.filename}", line {frame.lineno}, in {frame.name}{source}'
    return ""


def _skip_own_frames(trace: TracebackType | None, is_own: Callable[[str], bool]) -> TracebackType | None:
    while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace
