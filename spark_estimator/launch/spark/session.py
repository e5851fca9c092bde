"""Finds the Spark session to run in, or makes one for local use; and makes threads for a session's jobs."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from spark_estimator._native import require_engine
from spark_estimator.errors import NotEnoughSlotsError, PreflightError
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.java_environment import choose_java_environment
from spark_estimator.launch.spark.slots import is_connect, make_old_connect_error
from spark_estimator.log import get_logger

_log = get_logger(__name__)

# More ranks than that on this machine would only slow each other down; a user who wants them makes the session.
_MOST_RANKS_PER_CORE = 4
_ALWAYS_FINE = 8
# A user who sets one of these has chosen where Spark runs.
_SAYS_WHERE = ("MASTER", "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "DATABRICKS_RUNTIME_VERSION")


def find_or_make_session(size: int) -> SparkSession:
    """Return this thread's or process's session; where there is none, a new one for `size` ranks (0: one per slot).

    Raises NotEnoughSlotsError: `size` is too large for this machine; PreflightError: no session can be made;
    NativeLibraryError: ranks of the session would run on this machine, which has no engine.
    """
    session = find_session()
    is_local = Configuration(session).is_local and not is_connect(session) if session else None
    if is_local or (session is None and not any(map(os.environ.get, _SAYS_WHERE))):
        require_engine()
    return session or _make_default_session(size)


def make_session(master: str | None, remote: str | None, settings: Mapping[str, str], size: int) -> None:
    """Make a session, which `find_session` then finds. Raises PreflightError: it can't be made.

    Args:
        size: number of ranks, and of the cores of a local session.
        master, remote: URLs, at most one of them; None for both: `MASTER` or `SPARK_REMOTE`, or a local session.
    """
    builder = SparkSession.builder.appName("horovodrun")
    if remote is not None:
        builder = builder.remote(remote)
    else:
        os.environ.update(choose_java_environment())
        if master is None and not any(os.environ.get(name) for name in _SAYS_WHERE):
            master = f"local[{size}]"
        if master is not None:
            builder = builder.master(master)
            if master.startswith("local"):
                builder = _set_python(builder)
        # Spark's progress bar would mix with the lines of ranks.
        builder = builder.config("spark.ui.showConsoleProgress", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        builder.getOrCreate()
    except Exception as error:
        location = master or remote or "this machine"
        raise PreflightError(f"no Spark session at {location}: {str(error).splitlines()[0]}") from error


def find_session() -> SparkSession | None:
    """Return the active session, if any, classic or Connect. Raises PreflightError: of Spark Connect 3.4."""
    session = _get_active(SparkSession)
    if session is not None:
        return session
    connect = sys.modules.get("pyspark.sql.connect.session")
    if connect is not None:
        session = _get_active(connect.SparkSession)
        if session is not None:
            return session
        # Another thread has made the session; the builder would need its address again.
        session = getattr(connect.SparkSession, "_default_session", None)
        if session is not None and not getattr(session, "is_stopped", False):
            return cast("SparkSession", session)
    core = sys.modules.get("pyspark.core.context") or sys.modules.get("pyspark.context")
    if core is not None and core.SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    return None


def _get_active(kind: Any) -> SparkSession | None:
    try:
        return cast("SparkSession | None", kind.getActiveSession())
    except NotImplementedError:  # Spark Connect 3.4
        if "SPARK_REMOTE" in os.environ:
            raise make_old_connect_error() from None
        return None


def _make_default_session(size: int) -> SparkSession:
    java_is_chosen = any(os.environ.get(name) for name in _SAYS_WHERE)
    os.environ.update(choose_java_environment())
    builder = SparkSession.builder.appName("spark_estimator")
    if not java_is_chosen:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        most = max(_ALWAYS_FINE, _MOST_RANKS_PER_CORE * cores)
        if size > most:
            raise NotEnoughSlotsError(
                f"{size} ranks were requested and there is no Spark session. A new one would run on this machine, "
                f"whose {cores} cores are enough for at most {most} ranks. Connect to a cluster first "
                f'(SparkSession.builder.master("...").getOrCreate()), or use at most {most} ranks.'
            )
        master = f"local[{max(size, cores)}]"
        builder = (
            builder.master(master)
            .config("spark.ui.showConsoleProgress", "false")
            # Spark would wait ten minutes for slots that do not exist; here such a job is refused within seconds.
            .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
            .config("spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures", "3")
        )
        builder = _set_python(builder)
        _log.info("no Spark session: starting one with master %s", master)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise PreflightError(
            f"there is no Spark session, and none could be started: {str(error).splitlines()[0]}. Create one before "
            "run() (SparkSession.builder...getOrCreate()), or use HorovodRunner(np=-N), which needs no Spark."
        ) from error


def _set_python(builder: Any) -> Any:
    """Have local workers use the very Python that runs here, packages and all; Spark would take python3 from PATH."""
    if not os.environ.get("PYSPARK_PYTHON"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    python_path = _find_python_path()
    return builder.config("spark.executorEnv.PYTHONPATH", python_path) if python_path else builder


def _find_python_path() -> str:
    """Return PYTHONPATH for local workers that wouldn't find this package otherwise: it runs from a source folder."""
    root = str(Path(__file__).resolve().parents[3])  # of spark_estimator/launch/spark/session.py
    if Path(root).name in ("site-packages", "dist-packages"):
        return ""
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))


def make_session_thread(spark: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """Make a thread for Spark jobs of this session. It is a daemon thread, and not started yet.

    Its jobs have the properties and tags of the calling thread; on Spark 3.5, too. What cancels the jobs of that
    thread, a job group or a tag, cancels those of the new one.
    """
    if "session" in inspect.signature(InheritableThread.__init__).parameters:
        thread: threading.Thread = InheritableThread(target=target, session=spark)
    elif type(spark).__module__.startswith("pyspark.sql.connect"):
        tags = spark.getTags()

        def add_tags() -> None:
            for tag in tags:
                spark.addTag(tag)
            target()

        thread = threading.Thread(target=add_tags)
    else:
        thread = cast("threading.Thread", InheritableThread(target=target))
    thread.daemon = True
    return thread
