"""Folders of saved estimators and models: where they are, and whether they are trusted to run code.

Files that could run code when they are read are opened only if the user passes ``trust=True`` to `load`, or wraps the
loading of a Pipeline, PipelineModel or CrossValidatorModel in `trust_files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from spark_estimator.errors import DataError
from spark_estimator.store import DBFSLocalStore

#: The file that each whole folder has.
MANIFEST_FILE = "spark_estimator.json"
#: What to pass for a folder that is not read without trust.
TRUST = "trust=True (in a pipeline: use trust_files()) if you trust the folder"
#: The folder of a model's files within the ``data`` folder of an MLflow model.
MLFLOW_FOLDER = "estimator_model"
_OTHER_SCHEMES = ("hdfs:", "s3:", "s3a:", "gs:", "abfss:", "wasbs:", "viewfs:")
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trust_files() -> Iterator[None]:
    """Load, inside of this block, estimators and models with code that their files name: ``trust=True`` for all.

    It holds in the thread that has entered it. Only for files from a source that you trust to run code here::

        with trust_files():
            model = PipelineModel.load(path)
    """
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted(trust: bool) -> bool:
    """Return whether what could run code may be opened."""
    return trust or _trusted.get()


def is_local(path: str) -> bool:
    """Return whether a path is this machine's by its form: ``file:``, ``C:``; on Databricks ``/dbfs`` and ``/Volumes``.

    ``dbfs:/`` is the former. Without the mount such a path is what the session's Hadoop makes of it.

    Raises:
        TypeError: `path` is neither text nor a path.
        DataError: it is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"the folder of a model or an estimator must be a path; got {path!r}.")
    text = os.fspath(path)
    if not text:
        raise DataError("the folder of a model or an estimator must be a path; got an empty one.")
    if text.startswith("file:") or os.path.splitdrive(text)[0]:
        return True
    if DBFSLocalStore.matches(text):
        return os.path.isdir("/dbfs")
    return text.startswith("/Volumes/") and os.path.isdir("/Volumes")


def to_local_path(path: str) -> Path:
    """Return a folder of this machine's file system, Databricks' ``dbfs:/`` and ``file:`` included.

    Raises:
        TypeError: `path` is neither text nor a path.
        DataError: it is elsewhere, or empty.
    """
    is_local(path)
    text = os.fspath(path)
    if text.startswith(_OTHER_SCHEMES):
        raise DataError(f"{text} is not a folder of this machine: mount it, or copy it to one, and pass that.")
    if DBFSLocalStore.matches(text):
        return Path(DBFSLocalStore.normalize_path(text))
    if text.startswith("file:"):
        text = text[len("file:") :].lstrip("/")
        return Path(text if os.path.splitdrive(text)[0] else f"/{text}")
    return Path(text)
