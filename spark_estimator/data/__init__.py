"""From rows to batches: columns of a DataFrame, or of Parquet files, become fields in a rank's spool.

For functions that run on ranks (`HorovodRunner`, `spark.run`, ``horovodrun``): `make_torch_dataloader` reads a rank's
equal share of Parquet files; `files_of` returns, on the driver, the files that a DataFrame consists of; `data_sets`
lists the data sets that trainings have left in a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.lazy_names import bind_names

if TYPE_CHECKING:
    from spark_estimator.data.inventory import data_sets
    from spark_estimator.data.scan import files_of
    from spark_estimator.data.torch_loader import make_torch_dataloader

__all__ = ["data_sets", "files_of", "make_torch_dataloader"]

_HOME = {
    "data_sets": "spark_estimator.data.inventory",
    "files_of": "spark_estimator.data.scan",
    "make_torch_dataloader": "spark_estimator.data.torch_loader",
}
__getattr__, __dir__ = bind_names(__name__, _HOME)
