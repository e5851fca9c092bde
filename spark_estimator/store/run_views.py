"""Horovod's methods of stores for programs that train in a store's folders themselves: `RunViews`."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any


class RunViews:
    """A base class of `FilesystemStore`, whose other methods it calls."""

    def is_parquet_dataset(self, path: str) -> bool:
        """Return whether there are Parquet files that can be read."""
        try:
            return bool(self.get_parquet_dataset(path).fragments)
        except Exception:  # each kind of store has its own errors
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """Return pyarrow's data set of the Parquet files in a folder."""
        import pyarrow.parquet

        store: Any = self
        options: dict[str, Any] = {"coerce_int96_timestamp_unit": "us"}  # as nanoseconds, old dates overflow silently
        if not store._is_local(path):
            fs, path = store._open_filesystem(path)
            path, options["filesystem"] = fs._strip_protocol(path), fs
        return pyarrow.parquet.ParquetDataset(path, **options)

    def get_full_path_fn(self) -> Callable[[str], str]:
        """Return `get_full_path`, as a function that is sent without the store's other methods."""
        store: Any = self
        function: Callable[[str], str] = store.get_full_path
        return function

    def get_data_metadata_path(self, path: str) -> str:
        """Return the file beside a data set in which Horovod keeps the columns' metadata; this package writes none."""
        return posixpath.join(path, "_cached_metadata.pkl")

    def copy(self, src: str, dst: str) -> None:
        """Copy a file within the store."""
        store: Any = self
        store.write(dst, store.read(src))

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], AbstractContextManager[str]]:
        """Return a function whose context is a local folder for a training's files.

        It is the run's folder if this machine has the store, and else a temporary one, which `sync_fn` copies.
        """
        store: Any = self
        run_path: str = store.get_run_path(run_id)
        local = bool(store._is_local(run_path))

        @contextlib.contextmanager
        def open_folder() -> Iterator[str]:
            if local:
                os.makedirs(run_path, mode=0o700, exist_ok=True)
                yield run_path
                return
            temporary = tempfile.mkdtemp()
            try:
                yield temporary
            finally:
                shutil.rmtree(temporary)

        return open_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that copies the changed files below a local folder into the run's folder."""
        store: Any = self
        run_path: str = store.get_run_path(run_id)
        copied: dict[str, float] = {}

        def sync(local_run_path: str) -> None:
            if os.path.abspath(local_run_path) == run_path:
                return
            for folder, _, names in os.walk(local_run_path):
                for name in names:
                    path = os.path.join(folder, name)
                    changed = os.stat(path).st_mtime
                    if copied.get(path) != changed:
                        below = os.path.relpath(path, local_run_path).replace(os.path.sep, "/")
                        with open(path, "rb") as file:
                            store.write(posixpath.join(run_path, below), file.read())
                        copied[path] = changed

        return sync

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> Any:
        """Return the store's paths for a training, and its functions, as attributes of Horovod's names."""
        store: Any = self
        return SimpleNamespace(
            train_data_path=store.get_train_data_path(dataset_idx),
            val_data_path=store.get_val_data_path(dataset_idx),
            test_data_path=store.get_test_data_path(dataset_idx),
            saving_runs=store.saving_runs() if callable(store.saving_runs) else store.saving_runs,
            runs_path=store.get_runs_path(),
            run_path=store.get_run_path(run_id),
            checkpoint_path=store.get_checkpoint_path(run_id),
            logs_path=store.get_logs_path(run_id),
            checkpoint_filename=store.get_checkpoint_filename(),
            logs_subdir=store.get_logs_subdir(),
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )
