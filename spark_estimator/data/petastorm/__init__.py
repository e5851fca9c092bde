"""Petastorm's converter, readers and loaders by their own names, over this package's reader: petastorm is not needed.

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

import importlib
from typing import TYPE_CHECKING, Any

from spark_estimator.data.petastorm.converter import SparkDatasetConverter, make_spark_converter
from spark_estimator.data.petastorm.reader import Reader, make_batch_reader, make_reader
from spark_estimator.data.petastorm.transform import TransformSpec
from spark_estimator.data.petastorm.unischema import Unischema, UnischemaField

if TYPE_CHECKING:
    from spark_estimator.data.petastorm.loader import (
        BatchedDataLoader,
        DataLoader,
        InMemBatchedDataLoader,
        decimal_friendly_collate,
    )
    from spark_estimator.data.petastorm.tf_datasets import make_petastorm_dataset, tf_tensors

__all__ = [
    "BatchedDataLoader",
    "DataLoader",
    "InMemBatchedDataLoader",
    "Reader",
    "SparkDatasetConverter",
    "TransformSpec",
    "Unischema",
    "UnischemaField",
    "decimal_friendly_collate",
    "make_batch_reader",
    "make_petastorm_dataset",
    "make_reader",
    "make_spark_converter",
    "tf_tensors",
]

_HOME = {
    **dict.fromkeys(
        ("BatchedDataLoader", "DataLoader", "InMemBatchedDataLoader", "decimal_friendly_collate"), "loader"
    ),
    **dict.fromkeys(("make_petastorm_dataset", "tf_tensors"), "tf_datasets"),
}


def __getattr__(name: str) -> Any:
    """Loads what needs PyTorch or TensorFlow at its first use: a driver may not have them."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
