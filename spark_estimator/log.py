"""The package's one logger: to stderr, with the rank in front, at the level that the environment asks for."""

from __future__ import annotations

import logging
import sys

ROOT = "spark_estimator"

# Horovod's names for levels, least to most severe; Python has no TRACE and calls fatal CRITICAL.
LEVELS = {
    "trace": 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what sys.stderr is at the time of the message: notebooks and test runners exchange it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> object:
        return sys.stderr


def logger(name: str = ROOT) -> logging.Logger:
    """The logger of a module; give ``__name__``."""
    return logging.getLogger(name)


def configure(level: str, rank: int | None = None, *, times: bool = False) -> None:
    """Sets the package's level and puts the rank into its messages; called by ``init()``.

    An application that gave the ``spark_estimator`` logger handlers of its own keeps them.

    Args:
        level: a key of `LEVELS`.
        rank: the rank to show, None before there is one.
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
    who = "" if rank is None else f"[{rank}] "
    when = "%(asctime)s " if times else ""
    ours.setFormatter(logging.Formatter(f"{when}{who}spark_estimator %(levelname)s: %(message)s"))
