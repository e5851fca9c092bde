"""The package's logger: writes to stderr, puts the rank before each message, and uses the configured level."""

from __future__ import annotations

import logging
import sys

from spark_estimator.errors import remove_links

ROOT = "spark_estimator"

# Horovod's names of the levels, least to most severe; Python has no TRACE, and its name for fatal is CRITICAL.
LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Looks up sys.stderr for each message, because notebooks and test runners replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stderr


class _Formatter(logging.Formatter):
    """Leaves out the lines with which error messages end: a log line that quotes an error stays one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return remove_links(super().formatMessage(record))


def get_logger(name: str = ROOT) -> logging.Logger:
    """Return the logger of a module; `name` is its ``__name__``."""
    return logging.getLogger(name)


def configure(level: str, rank: int | None = None, *, times: bool = False) -> None:
    """Set the level of the package's logger and put the rank into its messages; called by ``init()``.

    If the application has added handlers to the ``spark_estimator`` logger, they are kept and no handler is added.

    Args:
        level: a key of `LEVELS`.
        rank: the rank to show; None: no rank.
        times: whether each message begins with the time of day.
    """
    root = logging.getLogger(ROOT)
    root.setLevel(LEVELS[level])
    ours = next((handler for handler in root.handlers if isinstance(handler, _StderrHandler)), None)
    if ours is None:
        if root.handlers:
            return
        ours = _StderrHandler()
        root.addHandler(ours)
        root.propagate = False
    rank_prefix = "" if rank is None else f"[{rank}] "
    time_prefix = "%(asctime)s " if times else ""
    ours.setFormatter(_Formatter(f"{time_prefix}{rank_prefix}spark_estimator %(levelname)s: %(message)s"))
