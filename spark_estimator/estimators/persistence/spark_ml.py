"""Spark ML's writer and reader, for the folders of saved estimators and models: replaced in one step.

Spark ML looks for ``metadata/part-00000``, so that a saved Pipeline finds its stages; ``spark_estimator.json`` has the
rest as plain text (`manifest`). Apart from ``folders``, since pyspark.ml imports pandas, which ranks need not load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.ml.util import MLReader, MLWriter

from spark_estimator.estimators.persistence.folders import MANIFEST_FILE
from spark_estimator.estimators.persistence.remote_folders import find_folder
from spark_estimator.store.replacement import find_surviving_folder, replace_folder


class FolderWriter(MLWriter):
    """``instance.write().overwrite().save(path)``.

    Args:
        write: puts the files into a new folder.
    """

    def __init__(self, write: Callable[[Path], None]) -> None:
        super().__init__()
        self._write = write

    def save(self, path: str) -> None:
        """Write the folder: all of it, or nothing. A crash at any moment leaves the previous folder or the new one.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system.

        Raises:
            FileExistsError: it exists already, and overwrite() was not called.
            DataError: this session does not reach the file system.
            OSError: it cannot be written; the text has the path, the user and the cause.
        """
        folder = find_folder(path, self._sparkSession, to_write=True)
        if not isinstance(folder, Path):
            with folder.replace(overwrite=self.shouldOverwrite) as partial:
                self._write(partial)
            return
        if not self.shouldOverwrite and find_surviving_folder(folder, MANIFEST_FILE).exists():
            raise FileExistsError(f"{folder} already exists. Call write().overwrite().save(...) to replace it.")
        with replace_folder(folder, overwrite=self.shouldOverwrite) as partial:
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
        """Load as the class's own load(path) does."""
        return self._load(path)
