"""A store on Databricks' file system as this machine sees it: ``dbfs:/`` and ``/dbfs``; Volumes are plain paths."""

from __future__ import annotations

import os
from typing import Any

from spark_estimator.store.filesystem import FilesystemStore, register_kind

_FORMS = ("dbfs:/", "/dbfs/", "file:///dbfs/", "file:/dbfs/")


class DBFSLocalStore(FilesystemStore):
    """A store under ``/dbfs``.

    Args:
        prefix_path: ``dbfs:/path``, ``/dbfs/path``, ``file:///dbfs/path`` or ``file:/dbfs/path``.

    The other arguments are as in `FilesystemStore`.

    Raises:
        ValueError: the path is of another form.
    """

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        if not self.matches(prefix_path):
            raise ValueError(f"{prefix_path}: a path of DBFS begins with one of {', '.join(_FORMS)}.")
        kwargs.setdefault("checkpoint_filename", "checkpoint.tf")  # Horovod's
        super().__init__(prefix_path, *args, **kwargs)

    def get_full_path(self, path: str) -> str:
        """Return the path as this machine sees it: ``/dbfs/path``."""
        return super().get_full_path(self.normalize_path(path))

    @staticmethod
    def matches(prefix_path: str) -> bool:
        """Return whether the path is one of DBFS."""
        return os.fspath(prefix_path).startswith(_FORMS)

    @staticmethod
    def normalize_path(path: str) -> str:
        """Return the path as ``/dbfs/path``."""
        for form in _FORMS:
            if path.startswith(form):
                return "/dbfs/" + path[len(form) :].lstrip("/")
        return path


register_kind(DBFSLocalStore.matches, DBFSLocalStore)
