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

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

if TYPE_CHECKING:
    from spark_estimator.extensions.petastorm.converter import SparkDatasetConverter, make_spark_converter
    from spark_estimator.extensions.petastorm.loader import (
        BatchedDataLoader,
        DataLoader,
        InMemBatchedDataLoader,
        decimal_friendly_collate,
    )
    from spark_estimator.extensions.petastorm.reader import Reader, make_batch_reader, make_reader
    from spark_estimator.extensions.petastorm.tf_datasets import make_petastorm_dataset, tf_tensors
    from spark_estimator.extensions.petastorm.transform import TransformSpec
    from spark_estimator.extensions.petastorm.unischema import Unischema, UnischemaField

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

_EXTENSION = "spark_estimator.extensions.petastorm"
_HOME = {
    "BatchedDataLoader": f"{_EXTENSION}.loader",
    "DataLoader": f"{_EXTENSION}.loader",
    "InMemBatchedDataLoader": f"{_EXTENSION}.loader",
    "Reader": f"{_EXTENSION}.reader",
    "SparkDatasetConverter": f"{_EXTENSION}.converter",
    "TransformSpec": f"{_EXTENSION}.transform",
    "Unischema": f"{_EXTENSION}.unischema",
    "UnischemaField": f"{_EXTENSION}.unischema",
    "decimal_friendly_collate": f"{_EXTENSION}.loader",
    "make_batch_reader": f"{_EXTENSION}.reader",
    "make_petastorm_dataset": f"{_EXTENSION}.tf_datasets",
    "make_reader": f"{_EXTENSION}.reader",
    "make_spark_converter": f"{_EXTENSION}.converter",
    "tf_tensors": f"{_EXTENSION}.tf_datasets",
}
__getattr__, __dir__ = bind_names(__name__, _HOME)
