"""Returns a trained model to the driver: through the store if the model is large and there is a store, else through
Spark.

Spark sends a task's result in one piece, and keeps several copies of it in the memory of the driver's Java: with the
default of 1 GiB, 120 MiB arrived, 128 MiB ended in Java's "unread block data", and 140 MiB never arrived (Spark 4.3).
A file in the store can have any size. Its hash is sent through Spark, so the driver detects a file that is not the one
rank 0 has written.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import socket
from typing import TYPE_CHECKING

from spark_estimator.errors import DataError, PreflightError
from spark_estimator.estimators.persistence.run_lease import Fence, SupersededError, write
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A model of more bytes is put into the store, where there is one.
LARGE = 16 << 20
# The memory of Java that a model needs, in its own bytes: it failed at eight times, and ten leave a margin.
_COPIES = 10
_UNITS = {"": 20, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def check_room(spark: SparkSession, model_bytes: int, store: Store | None) -> None:
    """Raise PreflightError if the trained model could not be returned to the driver.

    Args:
        model_bytes: size of its weights.
        store: the way back to the driver; None: through Spark.

    Raises:
        PreflightError: the driver's memory is too small; the message has the settings to change.
    """
    if store is not None:
        return
    memory = get_driver_memory(spark)
    if memory is None or model_bytes * _COPIES <= memory:
        return
    raise PreflightError(
        f"the model has {model_bytes / 2**20:.0f} MiB. To return it through Spark, the driver's JVM needs about "
        f"{_COPIES} times as much memory, and has {memory >> 20} MiB (spark.driver.memory). Set "
        "store=Store.create('/path') to a path that the driver and the executors can read and write, or start the "
        f"session with spark.driver.memory={model_bytes * _COPIES // 2**30 + 1}g."
    )


def get_driver_memory(spark: SparkSession) -> int | None:
    """Return the bytes of memory that the driver's JVM may use; None if a setting is not understood.

    The JVM of a classic session is asked: `spark.driver.memory` has no effect on one that runs already.
    """
    try:
        return int(spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
    except Exception:  # Spark Connect, or a session that forbids Java
        return parse_memory(Configuration(spark).get("spark.driver.memory") or "1g")


def parse_memory(text: str) -> int | None:
    """Return the bytes of an amount as Spark writes it: ``512m``, ``4g``; without a unit MiB. None for other text."""
    match = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", text.lower())
    return None if match is None else int(match[1]) << _UNITS[match[2]]


def put(store: Store, run_id: str, content: bytes, name: str, fence: Fence | None = None) -> tuple[str, str]:
    """Write the model into the store on rank 0, whole or not at all.

    Args:
        fence: of the attempt; None: nothing is kept of the run.
        name: of the file.

    Returns:
        The file, and its content's SHA-256.

    Raises:
        DataError: it cannot be written.
        SupersededError: another attempt or driver has the run.
    """
    path = posixpath.join(store.get_run_path(run_id), name)
    try:
        write(store, path, content, fence)
    except SupersededError:
        raise
    except Exception as error:  # each kind of store has its own errors
        raise DataError(
            f"the model of {len(content)} bytes cannot be written to {path} on rank 0 (host {socket.gethostname()}): "
            f"{type(error).__name__}: {error}. Fix the store, then fit again with this run_id to resume from the last "
            f"checkpoint, {store.get_checkpoint_path(run_id)}."
        ) from error
    return path, hashlib.sha256(content).hexdigest()


def download_model(store: Store, path: str, digest: str) -> bytes:
    """Return, on the driver, the bytes that `put` has written.

    Raises:
        DataError: the file is missing, or is not the one that `put` has written.
    """
    opens = (
        "keras.saving.load_model(path) gives the model."
        if path.endswith(".keras")
        else "torch.load(path, weights_only=True) gives its numbers."
    )
    try:
        content = store.read(path)
    except OSError as error:
        raise DataError(
            f"the training finished and its model is in {path} on rank 0's host, but the driver cannot read it: "
            f"{error}. The store must have the same path on the driver and the executors. On that host, {opens}"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(
            f"{path} doesn't match the SHA-256 rank 0 reported. Another run with the same run_id may have "
            "overwritten it."
        )
    return content
