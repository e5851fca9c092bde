"""Reports what this process is doing to the ranks that wait for it: the stacks of its Python threads."""

from __future__ import annotations

import os
import queue
import selectors
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from spark_estimator.log import get_logger

# A rank's answer is sent to rank 0 and into its log: a recursion's thousand frames or a hundred threads must not fill
# it.
MAX_FRAMES = 50
MAX_CHARACTERS = 32_000
_ASK_SECONDS = 60.0  # how long one call waits; the engine ends it when it shuts down
_STOP_SECONDS = 2.0
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_DEMO = str(Path(_PACKAGE, "demo.py"))
_WAITING = frozenset({threading.__file__, queue.__file__, selectors.__file__})
_log = get_logger(__name__)


def format_current_stacks() -> str:
    """Return the user's threads' stacks, the main one first, most recent call last, cut to `MAX_CHARACTERS`.

    Calls inside this package are reduced to one line; its own threads are left out, and so is the calling one unless it
    is the main one.
    """
    main = threading.main_thread().ident
    own_thread = threading.get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    try:
        parts = [
            _format_stack(names.get(ident, "unknown to Python's threading"), frames[ident])
            for ident in sorted(frames, key=lambda ident: (ident != main, ident))
            if ident == main or (ident != own_thread and not _is_own(frames[ident]))
        ]
    finally:
        del frames  # they would keep the threads' variables alive
    text = "\n".join(parts)
    if len(text) > MAX_CHARACTERS:
        text = text[:MAX_CHARACTERS].rpartition("\n")[0] + "\n  (more omitted)"
    return text


def _format_stack(name: str, frame: FrameType) -> str:
    calls = list(traceback.walk_stack(frame))  # the most recent first
    inside = next((number for number, (call, _) in enumerate(calls) if not _is_ours(call)), len(calls))
    summary = traceback.StackSummary.extract(iter(calls[inside:]), limit=MAX_FRAMES)
    summary.reverse()
    more = "  (older calls omitted)\n" if len(summary) == MAX_FRAMES else ""
    ours = f"  (inside spark_estimator: {calls[inside - 1][0].f_code.co_name})\n" if inside else ""
    return f"Thread {name} (most recent call last):\n{more}{''.join(summary.format())}{ours}".rstrip()


def _is_ours(frame: FrameType) -> bool:
    """Return whether a call is of this package, and not of its example program."""
    path = frame.f_code.co_filename
    return path.startswith(_PACKAGE) and path != _DEMO


def _is_own(frame: FrameType) -> bool:
    """Return whether a thread is one that this package has started for itself: no call in it is a user's."""
    calls = [call for call, _ in traceback.walk_stack(frame)]
    return any(map(_is_ours, calls)) and all(_is_ours(call) or call.f_code.co_filename in _WAITING for call in calls)


class StackReporter:
    """A daemon thread that answers the engine's requests for this process's stacks, until `await_question` raises."""

    def __init__(
        self,
        await_question: Callable[[float], int | None],
        answer: Callable[[int, str], None],
        stacks: Callable[[], str] = format_current_stacks,
    ) -> None:
        self._await_question = await_question
        self._answer = answer
        self._stacks = stacks
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._answer_requests, name="spark_estimator stacks", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether requests are answered: not after `stop`, an end of the engine, or in a forked child."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Answer no more requests. Idempotent. After the engine's shutdown; else the thread runs for a minute more."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def _answer_requests(self) -> None:
        while not self._stopped.is_set():
            try:
                question = self._await_question(_ASK_SECONDS)
                if question is None or self._stopped.is_set():
                    continue
            except Exception as error:
                _log.debug("stack reports end: %s", error)
                return
            try:
                text = self._stacks()
            except Exception as error:
                text = f"its stacks are not available: {error!r}"
            try:
                self._answer(question, text)
            except Exception as error:
                _log.debug("stack request %d failed: %s", question, error)
