"""Has the jobs of a program whose ranks start one by one start one job after the other.

Spark starts the tasks of a barrier stage together or not at all. Of two plain stages it may start a part each, with
fair scheduling (``spark.scheduler.mode=FAIR``): each job would hold slots that the other waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICE_SECONDS = 0.2
_changed = threading.Condition()
#: By the Spark application: the jobs that start or wait, the first of which it is the turn of.
_lines: dict[str, list[StartTurn]] = {}


class StartTurn:
    """A job's turn to start its ranks in its session's application; `function`: what it runs, for messages."""

    def __init__(self, spark: SparkSession, function: str) -> None:
        self.function = function
        self._application = _identify_application(spark)

    def wait(self, is_wanted: Callable[[], bool]) -> bool:
        """Wait until no earlier job is starting. Return False if this one was ended, by `is_wanted`, meanwhile."""
        with _changed:
            line = _lines.setdefault(self._application, [])
            line.append(self)
            while line[0] is not self:
                if not is_wanted():
                    return False
                _changed.wait(_SLICE_SECONDS)
        return is_wanted()

    def end(self) -> None:
        """End the turn: all ranks of the job have started, or it has ended. May be called again, by any thread."""
        with _changed:
            line = _lines.get(self._application, [])
            if self in line:
                line.remove(self)
                _changed.notify_all()

    def find_earlier(self) -> str:
        """Return the function of the job that has its turn before this one; empty: none has."""
        with _changed:
            line = _lines.get(self._application, [])
            return line[0].function if self in line[1:] else ""


def _identify_application(spark: SparkSession) -> str:
    """Return what identifies a session's Spark application in this process; of Connect, only the session is known."""
    session: Any = spark
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return str(session.session_id)
    return str(session.sparkContext.applicationId)
