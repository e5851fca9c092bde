"""Trainings with a data module of the user's: the rows are written to the store, and the module reads them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from spark_estimator.estimators import data_modules
from spark_estimator.estimators.estimator import TableEstimator
from spark_estimator.estimators.model import TableModel
from spark_estimator.estimators.params import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Model = TypeVar("_Model", bound=TableModel)
#: The parameter, in the tables of the frameworks that have it.
DATA_MODULE = Row(
    "data_module",
    None,
    data_modules.checked,
    "a class derived from horovod.spark.common.datamodule.DataModule that reads the ranks' batches from the store; "
    "None, or PetastormDataModule: this package reads them",
    "type | None",
    "Any",
)


class FolderFit(TableEstimator[_Model]):
    """An estimator with the parameter `data_module` of Horovod."""

    #: Of `ModulePlan`.
    _rounds_up: ClassVar[bool] = False

    def _takes_folders(self) -> bool:
        return data_modules.takes_folders(self._value("data_module"))

    def _fit_on_folders(self, dataset: DataFrame) -> _Model:
        self._training()  # raises where a parameter can't be used, before rows are written
        size = self._size(self._chosen_backend())
        processes = size(dataset.sparkSession) if callable(size) else size
        with data_modules.written(self, dataset, processes) as index:
            return self.fit_on_parquet(None, index)

    def fit_on_parquet(self, params: Any = None, dataset_idx: int | None = None) -> _Model:
        """See `TableEstimator.fit_on_parquet`."""
        if not params and self._takes_folders():
            plan = data_modules.plan_of(self, dataset_idx, rounds_up=self._rounds_up)
            return self.copy({self.getParam("data_module"): plan}).fit_on_parquet(None, dataset_idx)
        return super().fit_on_parquet(params, dataset_idx)

    def _module_plan(self) -> data_modules.ModulePlan | None:
        plan = self._value("data_module")
        return plan if isinstance(plan, data_modules.ModulePlan) else None
