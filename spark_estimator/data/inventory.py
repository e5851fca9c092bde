"""The data sets that trainings have left in a store: which there are, and how they are removed.

``fit`` with ``materialize=True`` writes a new one wherever it does not know that the rows are those of an old one: in
each session anew, and over Spark Connect each time. None of them is removed by itself, as `fit_on_parquet` may want it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone

from spark_estimator.data.materialize import MANIFEST, folders_of, manifest_of, prepared
from spark_estimator.errors import DataError
from spark_estimator.store import FilesystemStore


@dataclass(frozen=True)
class DataSet:
    """Rows for training in a store.

    Attributes:
        index: as `fit_on_parquet` has it in ``dataset_idx``.
        folder: where it is.
        size: bytes of its files.
        rows: how many; None: it is torn, or in the making.
        written: when `fit` has written it; None: somebody else has, or it is not whole.
        session: the id of the Spark application that has written it, the only one in which `fit` finds it again; None:
            it is not known.
    """

    index: int | None
    folder: str
    size: int
    rows: int | None
    written: datetime | None
    session: str | None
    store: FilesystemStore = field(repr=False)

    def remove(self) -> None:
        """Removes it. A training that reads it fails, or is past reading: ranks read it once, as they begin."""
        self.store.remove(self.folder)


def data_sets(store: FilesystemStore) -> list[DataSet]:
    """All data sets for training in a store, by number.

    To remove what `fit` of this session will not use again::

        for one in data_sets(store):
            if one.session != spark.sparkContext.applicationId:
                one.remove()

    Raises:
        DataError: the store cannot be reached.
    """
    return [_looked_at(store, index, folder) for index, folder in folders_of(store).items()]


def _looked_at(store: FilesystemStore, index: int | None, folder: str) -> DataSet:
    size = sum(entry.size or 0 for entry in store.entries(folder))
    rows: int | None = None
    told: dict[str, object] = {}
    try:
        rows = prepared(store, folder).rows
        told = manifest_of(store, folder) if store.exists(f"{folder}/{MANIFEST}") else {}
    except DataError:
        pass  # torn, or in the making: that is no reason to hide it
    seconds, session = told.get("written"), told.get("session")
    written = datetime.fromtimestamp(seconds, timezone.utc) if isinstance(seconds, (int, float)) else None
    return DataSet(index, folder, size, rows, written, session if isinstance(session, str) else None, store)
