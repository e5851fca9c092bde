"""Makes threads whose Spark jobs have the properties and tags of the thread that asks for them; on Spark 3.5, too."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pyspark import InheritableThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_thread(spark: SparkSession, target: Callable[[], None]) -> threading.Thread:
    """A thread for Spark jobs of this session. It does not keep the process alive, and is not started yet.

    What cancels the jobs of the thread that calls this, a job group or a tag, cancels those of the new one.
    """
    if "session" in inspect.signature(InheritableThread.__init__).parameters:
        thread: threading.Thread = InheritableThread(target=target, session=spark)
    elif type(spark).__module__.startswith("pyspark.sql.connect"):
        tags = spark.getTags()

        def with_tags() -> None:
            for tag in tags:
                spark.addTag(tag)
            target()

        thread = threading.Thread(target=with_tags)
    else:
        thread = cast("threading.Thread", InheritableThread(target=target))
    thread.daemon = True
    return thread
