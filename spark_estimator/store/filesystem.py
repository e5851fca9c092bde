"""`Store` and `FilesystemStore`: the folders of runs and of data under one path, and files that are whole or not there.

A crash at any moment leaves the previous file or the new one (`replacement`, `in_place`).

Paths of this machine need nothing; any other URL (``s3://``, ``gs://``, ``abfss://``, ``hdfs://``) needs fsspec and its
package for that kind. A store is sent to the ranks by pickle: what it names must mean the same there.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

from spark_estimator.errors import PreflightError
from spark_estimator.posix import IS_WINDOWS
from spark_estimator.security import file_modes
from spark_estimator.store import in_place
from spark_estimator.store.hdfs_client import open_hdfs
from spark_estimator.store.replacement import discard_leftovers, replace_file
from spark_estimator.store.run_views import RunViews

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")
#: Schemes that fsspec itself does not list, and the name by which it knows their file system.
_SCHEMES = {"abfss": "abfs"}
# A URL that is not written as one: a local folder of that name is not meant.
_NEARLY_URL = re.compile(r"^(?!file:)[a-zA-Z][a-zA-Z0-9+.-]+:/(?!/)|^[^/]*::|^(?!file://)[^/]*[^a-zA-Z0-9+.-][^/]*://")
#: As Horovod lays them out; users of `fit_on_parquet` rely on it.
_TRAIN, _VAL, _TEST, _RUNS = "intermediate_train_data", "intermediate_val_data", "intermediate_test_data", "runs"


class Entry(NamedTuple):
    """A file or folder in a folder.

    Attributes:
        path: whole.
        size: in bytes; None: it is a folder.
    """

    path: str
    size: int | None


class Store:
    """The folders of data, checkpoints and logs of trainings. `Store.create` chooses the kind by the path.

    A store of one's own subclasses this, or better `FilesystemStore`.
    """

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Make the store for a path: DBFS on Databricks, HDFS, or any other file system.

        Args:
            prefix_path: a folder or URL.
            args, kwargs: of the kind's constructor.
        """
        kind = next((kind for matches, kind in _kinds if matches(prefix_path)), FilesystemStore)
        return kind(prefix_path, *args, **kwargs)

    def get_run_path(self, run_id: str) -> str:
        """Return the folder of one training."""
        raise NotImplementedError(f"{type(self).__name__} is a Store and has to define get_run_path().")

    def get_checkpoint_path(self, run_id: str) -> str | None:
        """Return the file of a training's last checkpoint; None: none is kept."""
        raise NotImplementedError(f"{type(self).__name__} is a Store and has to define get_checkpoint_path().")

    def exists(self, path: str) -> bool:
        """Return whether the file or folder exists."""
        raise NotImplementedError(f"{type(self).__name__} is a Store and has to define exists().")

    def read(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError where there is none."""
        raise NotImplementedError(f"{type(self).__name__} is a Store and has to define read().")

    def write(self, path: str, content: bytes) -> None:
        """Put a file there, whole: a reader finds the previous one or the new one, also after a crash."""
        raise NotImplementedError(f"{type(self).__name__} is a Store and has to define write().")


class FilesystemStore(RunViews, Store):
    """A store under one folder of any file system.

    Args:
        prefix_path: the folder: a path of this machine, or a URL that fsspec knows.
        train_path, val_path, test_path, runs_path: other folders than those under `prefix_path`.
        save_runs: False: no checkpoints and logs are kept.
        storage_options: for fsspec: keys, endpoints.
        checkpoint_filename: of the last checkpoint in a run's folder.

    Raises:
        PreflightError: fsspec does not support the URL's scheme, or lacks a package for it.
        ValueError: a path is nearly a URL, such as ``s3:/bucket``.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        self.prefix_path = self.get_full_path(os.fspath(prefix_path))
        self._train_path = self.get_full_path(train_path or self._join(_TRAIN))
        self._val_path = self.get_full_path(val_path or self._join(_VAL))
        self._test_path = self.get_full_path(test_path or self._join(_TEST))
        self._runs_path = self.get_full_path(runs_path or self._join(_RUNS))
        self._save_runs = save_runs
        self.storage_options = dict(storage_options or {})
        self._checkpoint_filename = checkpoint_filename or "checkpoint"
        self._check()

    def get_full_path(self, path: str) -> str:
        """Return the path as this store writes it: absolute.

        Raises:
            ValueError: it is nearly a URL.
        """
        if _NEARLY_URL.match(path):
            raise ValueError(f"{path!r} is neither a path nor a URL: a URL is written as scheme://host/path.")
        if _SCHEME.match(path) and not path.startswith("file://"):
            return path.rstrip("/")
        local = path.removeprefix("file://").removeprefix("file:")
        return os.path.abspath(local[1:] if os.path.splitdrive(local[1:])[0] else local)  # of "/C:/folder"

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the ranks. Raises PreflightError: no rank has a folder of a Windows machine."""
        if IS_WINDOWS and self._is_local(self.prefix_path):
            raise PreflightError(f"No rank has {self.prefix_path}, of this Windows machine: the store needs a URL.")
        return self.__dict__

    def get_localized_path(self, path: str) -> str:
        """Return the path without ``file://``."""
        return path.removeprefix("file://")

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the folder of training data; of data set `idx`."""
        return self._train_path if idx is None else f"{self._train_path}.{idx}"

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the folder of data for validation."""
        return self._val_path if idx is None else f"{self._val_path}.{idx}"

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the folder of data for tests."""
        return self._test_path if idx is None else f"{self._test_path}.{idx}"

    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are kept."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Return the folder of all trainings."""
        return self._runs_path

    def get_run_path(self, run_id: str) -> str:
        if not run_id or run_id in (".", "..") or "/" in run_id:
            raise ValueError(f"run_id must name a folder; got {run_id!r}.")
        return posixpath.join(self._runs_path, run_id)

    def get_checkpoint_filename(self) -> str:
        """Return the name of the last checkpoint's file."""
        return self._checkpoint_filename

    def get_checkpoint_path(self, run_id: str) -> str | None:
        return posixpath.join(self.get_run_path(run_id), self._checkpoint_filename) if self._save_runs else None

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return the files of a training whose names end with `suffix`, in order."""
        folder = self.get_run_path(run_id)
        if not self.exists(folder):
            return []
        return sorted(path for path in self._list_files(folder) if path.endswith(suffix))

    def get_logs_subdir(self) -> str:
        """Return the name of the folder of logs in a run's."""
        return "logs"

    def get_logs_path(self, run_id: str) -> str | None:
        """Return the folder of a training's logs; None: none are kept."""
        return posixpath.join(self.get_run_path(run_id), self.get_logs_subdir()) if self._save_runs else None

    def exists(self, path: str) -> bool:
        if self._is_local(path):
            return os.path.exists(path)
        fs, fs_path = self._open_filesystem(path)
        return bool(fs.exists(fs_path))

    def read(self, path: str) -> bytes:
        if self._is_local(path):
            with open(path, "rb") as file:
                return file.read()
        fs, fs_path = self._open_filesystem(path)
        content: bytes = in_place.read(fs, fs_path) if in_place.writes_in_place(fs) else fs.cat_file(fs_path)
        return content

    def write(self, path: str, content: bytes, *, confirm: Callable[[], None] = lambda: None) -> None:
        """See `Store.write`.

        Args:
            confirm: called as late as this file system allows, before a reader could see anything of the new content;
                what it raises leaves the previous file.
        """
        if self._is_local(path):
            replace_file(path, content, confirm)
            return
        confirm()
        fs, fs_path = self._open_filesystem(path)
        if in_place.writes_in_place(fs):
            in_place.write(fs, fs_path, content)
        else:
            fs.pipe_file(fs_path, content)

    def discard_partials(self, folder: str) -> None:
        """Remove from a folder what a `write` that was killed has left; who writes there now loses nothing."""
        if self._is_local(folder):
            discard_leftovers(folder)

    def open(self, path: str, mode: str = "rb", *, make_folder: bool = True) -> BinaryIO:
        """Open a file to read it from any offset, or, with "wb", to write it from its beginning to its end.

        A file that is being written may be seen before it is whole, on this machine's file systems.

        Args:
            make_folder: False: where the file system has folders, the file's has to be there.
        """
        if self._is_local(path):
            if "w" in mode and make_folder:
                file_modes.make_folders(os.path.dirname(path))
            return cast(BinaryIO, open(path, mode, opener=file_modes.opener))
        fs, fs_path = self._open_filesystem(path)
        return cast(BinaryIO, fs.open(fs_path, mode))

    def entries(self, folder: str) -> list[Entry]:
        """Return the entries of a folder, by name; of a file, itself.

        Raises:
            FileNotFoundError: there is nothing of that name.
        """
        if self._is_local(folder):
            if not os.path.isdir(folder):
                return [Entry(folder, os.stat(folder).st_size)]
            with os.scandir(folder) as result:
                entries = [Entry(value.path, None if value.is_dir() else value.stat().st_size) for value in result]
        else:
            fs, fs_path = self._open_filesystem(folder)
            fs.invalidate_cache(fs_path)  # others write there, too
            folder_path = fs._strip_protocol(fs_path).rstrip("/")
            entries = []
            for item in fs.ls(fs_path, detail=True):
                name = fs._strip_protocol(str(item["name"])).rstrip("/")
                path = folder if name == folder_path else posixpath.join(folder, name.rpartition("/")[2])
                entries.append(Entry(path, None if item["type"] == "directory" else int(item["size"])))
        return sorted(entries)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it.

        Raises:
            FileNotFoundError: there is nothing of that name.
        """
        if not self._is_local(path):
            fs, fs_path = self._open_filesystem(path)
            fs.rm(fs_path, recursive=True)
            if in_place.writes_in_place(fs):
                in_place.remove_next(fs, fs_path)
        elif os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def write_text(self, path: str, text: str) -> None:
        """Put a text file there, whole."""
        self.write(path, text.encode())

    @property
    def fs(self) -> Any:
        """Return fsspec's file system for `prefix_path`.

        Raises:
            PreflightError: fsspec, or what it needs for this kind, is not installed.
        """
        return self._open_filesystem(self.prefix_path)[0]

    def _open_filesystem(self, path: str) -> tuple[Any, str]:
        """Return fsspec's file system for a path, and the path as that has it."""
        match = _SCHEME.match(path)
        scheme = _SCHEMES.get(match[1], match[1]) if match else "file"
        try:
            if scheme in ("hdfs", "viewfs"):
                return open_hdfs(path, self.storage_options), path
            import fsspec

            # The URL has the host, and for some kinds a user, a port or an account.
            of_url = fsspec.get_filesystem_class(scheme)._get_kwargs_from_urls(path) if match else {}
            return fsspec.filesystem(scheme, **{**of_url, **self.storage_options}), path
        except ImportError as error:
            named = re.search(r"\binstall ([\w-]+)", str(error), re.IGNORECASE)
            package = "fsspec" if error.name == "fsspec" else named and named[1]
            remedy = (
                f"a package is missing. Run pip install {package}, on the driver and on all executors."
                if package
                else f"{error}. Install this on the driver and on all executors."
            )
            raise PreflightError(f"{path}: {remedy}") from error
        except ValueError as error:
            raise PreflightError(
                f"{path}: {error}. A store is a path of this machine or a URL of fsspec, such as s3://bucket/folder."
            ) from error

    def get_filesystem(self) -> Any:
        """Return `fs`."""
        return self.fs

    def _check(self) -> None:
        if not self._is_local(self.prefix_path):
            _ = self.fs

    def _join(self, name: str) -> str:
        return posixpath.join(self.prefix_path, name)

    def _list_files(self, folder: str) -> list[str]:
        return [entry.path for entry in self.entries(folder)]

    def _is_local(self, path: str) -> bool:
        """Return whether this machine's own file system has the path."""
        return not _SCHEME.match(path)


_kinds: list[tuple[Callable[[str], bool], type[FilesystemStore]]] = []


def register_kind(matches: Callable[[str], bool], kind: type[FilesystemStore]) -> None:
    """Make `Store.create` use this kind of store for the paths that `matches` accepts."""
    _kinds.append((matches, kind))


#: Horovod's name of the base of users' own stores.
AbstractFilesystemStore = FilesystemStore


class LocalStore(FilesystemStore):
    """Horovod's older name of `FilesystemStore`."""
