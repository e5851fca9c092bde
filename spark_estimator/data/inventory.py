"""Lists and removes the data sets that trainings have written to a store.

``fit`` with ``materialize=True`` writes a new data set unless it knows that an existing one has the same rows: once in
each session, and each time over Spark Connect. None is removed automatically, as `fit_on_parquet` may need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from spark_estimator.data.materialize import MANIFEST, find_data_set, find_folders, read_manifest
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore


@dataclass(frozen=True)
class DataSet:
    """Rows for training in a store.

    Attributes:
        index: as `fit_on_parquet` has it in ``dataset_idx``.
        folder: where it is.
        size: bytes of its files.
        rows: the number of rows; None: the data set is incomplete, or is being written.
        written: when `fit` wrote it; None: another program wrote it, or it is incomplete.
        session: the id of the Spark application that wrote it, the only one in which `fit` uses it again; None:
            unknown.
    """

    index: int | None
    folder: str
    size: int
    rows: int | None
    written: datetime | None
    session: str | None
    store: FilesystemStore = field(repr=False)

    def remove(self) -> None:
        """Remove it. A training that reads it fails, or is past reading: ranks read it once, as they begin."""
        self.store.remove(self.folder)


def data_sets(store: FilesystemStore) -> list[DataSet]:
    """Return all data sets for training in a store, by number.

    To remove what `fit` of this session will not use again::

        for data_set in data_sets(store):
            if data_set.session != spark.sparkContext.applicationId:
                data_set.remove()

    Raises:
        DataError: the store cannot be reached.
    """
    return [_inspect(store, index, folder) for index, folder in find_folders(store).items()]


def _inspect(store: FilesystemStore, index: int | None, folder: str) -> DataSet:
    size = sum(entry.size or 0 for entry in store.entries(folder))
    rows: int | None = None
    manifest: dict[str, object] = {}
    try:
        rows = find_data_set(store, folder).rows
        manifest = read_manifest(store, folder) if store.exists(f"{folder}/{MANIFEST}") else {}
    except DataError:
        pass  # incomplete, or being written: it is listed nevertheless
    seconds, session = manifest.get("written"), manifest.get("session")
    written = datetime.fromtimestamp(seconds, timezone.utc) if isinstance(seconds, (int, float)) else None
    return DataSet(index, folder, size, rows, written, session if isinstance(session, str) else None, store)
