"""Sends a large model to Spark's Python workers as a file: once to each executor, where all workers map it.

A function's model would otherwise be unpickled for each task, be in each worker's memory, and be limited over Spark
Connect by ``spark.connect.grpc.maxInboundMessageSize`` (128 MiB). Files are sent in pieces.
"""

from __future__ import annotations

import functools
import os
import tempfile
from typing import TYPE_CHECKING

from spark_estimator.errors import DataError
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.log import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A model of more bytes is sent as a file. Spark keeps it as long as the session lives; smaller ones it forgets sooner.
LARGE = 16 << 20
_log = get_logger(__name__)
#: (session, file) that were sent.
_sent: set[tuple[str, str]] = set()


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the files of classic sessions, whose executors read them from the driver until it ends."""
    return tempfile.TemporaryDirectory(prefix="spark_estimator-models-")


def send(spark: SparkSession, key: str, content: bytes) -> str | None:
    """Send a model to all executors of a session, unless it was sent before.

    Args:
        key: of the content, as part of a file's name.

    Returns:
        The name for `find_path`; None: this Spark cannot send files (Connect 3.4), or encrypts its files, but not
        these.
    """
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    if Configuration(spark).is_true("spark.io.encryption.enabled") or (
        is_connect and not hasattr(spark, "addArtifacts")
    ):
        return None
    name = f"spark_estimator-{key}.model"
    session = str(spark.session_id if is_connect else spark.sparkContext.applicationId)  # type: ignore[attr-defined]
    if (session, name) not in _sent:
        path = os.path.join(_make_folder().name, name)
        with open(path, "wb") as file:
            file.write(content)
        if is_connect:
            spark.addArtifacts(path, file=True)
            os.unlink(path)
        else:
            spark.sparkContext.addFile(path)
        _sent.add((session, name))
        _log.debug("a model of %.0f MiB was sent as %s", len(content) / 2**20, name)
    return name


def find_path(name: str) -> str:
    """Return the path, on an executor, of a file that `send` has sent.

    Raises:
        DataError: Spark has not brought it.
    """
    from pyspark import SparkFiles

    path = SparkFiles.get(name)
    if not os.path.exists(path):
        raise DataError(
            f"{path} is missing: Spark sends a model of more than {LARGE >> 20} MiB to its executors as a file, which "
            "belongs to the session. Call transform(df) in the session that runs the query."
        )
    return path
