"""Petastorm's converter, readers and loader by their own names, over this package's reader: petastorm is not needed.

::

    converter = make_spark_converter(df)

    def train():
        import horovod.torch as hvd

        hvd.init()
        with converter.make_torch_dataloader(batch_size=64, cur_shard=hvd.rank(), shard_count=hvd.size()) as loader:
            for batch in loader:  # {"x": tensor, "label": tensor}
                ...

    HorovodRunner(np=2).run(train)

A DataFrame that is just Parquet files is not copied. Any other one is written once below the folder that the session's
setting ``petastorm.spark.converter.parentCacheDirUrl`` names, and read from there again while its plan is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_estimator.data.petastorm.converter import SparkDatasetConverter, make_spark_converter
from spark_estimator.data.petastorm.reader import Reader, make_batch_reader, make_reader

if TYPE_CHECKING:
    from spark_estimator.data.petastorm.loader import BatchedDataLoader, DataLoader

__all__ = [
    "BatchedDataLoader",
    "DataLoader",
    "Reader",
    "SparkDatasetConverter",
    "make_batch_reader",
    "make_reader",
    "make_spark_converter",
]


def __getattr__(name: str) -> Any:
    """Loads the loaders at their first use: they need PyTorch, which a driver may not have."""
    if name in ("BatchedDataLoader", "DataLoader"):
        from spark_estimator.data.petastorm import loader

        return getattr(loader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
