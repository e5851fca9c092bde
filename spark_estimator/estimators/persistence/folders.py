"""Folders of saved estimators and models: whole or not there, found by Spark ML, opened with trust or without.

``metadata/part-00000`` is what Spark ML looks for, so that a saved Pipeline finds its stages; ``spark_estimator.json``
holds the rest in plain text (`told`). What could run code when it is read is opened only where the user has said so: by
``trust=True`` where the folder itself is loaded, or by `trust_files` around the loading of a Pipeline, a PipelineModel
or a CrossValidatorModel, whose readers hand on no such word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from pyspark.ml.util import MLReader, MLWriter

from spark_estimator.errors import DataError
from spark_estimator.store import DBFSLocalStore
from spark_estimator.store.replacement import replaced_folder, surviving_folder

#: The file that each whole folder has.
TOLD_FILE = "spark_estimator.json"
_OTHER_SCHEMES = ("hdfs:", "s3:", "s3a:", "gs:", "abfss:", "wasbs:", "viewfs:")
_trusted: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def trust_files() -> Iterator[None]:
    """Inside of this block, estimators and models are loaded with code that their files name: ``trust=True`` for all.

    It holds in the thread that has entered it. Only for files from somebody whom you would let run code here::

        with trust_files():
            model = PipelineModel.load(path)
    """
    token = _trusted.set(True)
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted(trust: bool) -> bool:
    """Whether what could run code may be opened."""
    return trust or _trusted.get()


class FolderWriter(MLWriter):
    """``instance.write().overwrite().save(path)``.

    Args:
        write: puts the files into a new folder.
    """

    def __init__(self, write: Callable[[Path], None]) -> None:
        super().__init__()
        self._write = write

    def save(self, path: str) -> None:
        """Writes the folder: all of it, or nothing. A crash at any moment leaves the previous folder or the new one.

        Raises:
            FileExistsError: it is there already, and overwrite() was not said.
        """
        folder = local_path(path)
        if not self.shouldOverwrite and surviving_folder(folder, TOLD_FILE).exists():
            raise FileExistsError(f"{folder} is there already: say write().overwrite().save(...) to replace it.")
        with replaced_folder(folder, overwrite=self.shouldOverwrite) as partial:
            self._write(partial)


class FolderReader(MLReader[Any]):
    """``Kind.read().load(path)``.

    Args:
        load: as ``Kind.load``.
    """

    def __init__(self, load: Callable[[str], Any]) -> None:
        super().__init__()
        self._load = load

    def load(self, path: str) -> Any:
        """As the class's own load(path)."""
        return self._load(path)


def local_path(path: str) -> Path:
    """A folder of this machine's file system, Databricks' ``dbfs:/`` and ``file:`` included.

    Raises:
        DataError: it is elsewhere.
    """
    text = str(path)
    if text.startswith(_OTHER_SCHEMES):
        raise DataError(
            f"{text}: models are saved to folders that the driver sees (a local or mounted path, /Volumes, dbfs:/). "
            "Save it there and copy the folder."
        )
    if DBFSLocalStore.matches(text):
        return Path(DBFSLocalStore.normalize_path(text))
    if text.startswith("file:"):
        return Path("/" + text[len("file:") :].lstrip("/"))
    return Path(text)
