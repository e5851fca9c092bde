"""`TorchModel`: a trained PyTorch model that predicts on DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.ml import Model
from torch import nn

from spark_estimator.data.fields import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TorchModel(Model):
    """What `TorchEstimator.fit` returns."""

    def __init__(
        self,
        *,
        model: nn.Module,
        history: list[dict[str, Any]],
        inputs: Sequence[Field],
        feature_cols: list[str],
        label_cols: list[str],
        run_id: str,
    ) -> None:
        super().__init__()
        self._model = model
        self._history = history
        self._inputs = tuple(inputs)
        self._feature_cols = feature_cols
        self._label_cols = label_cols
        self._run_id = run_id

    def getModel(self) -> nn.Module:  # noqa: N802
        return self._model

    def getHistory(self) -> list[dict[str, Any]]:  # noqa: N802
        return self._history

    def _transform(self, dataset: DataFrame) -> DataFrame:
        raise NotImplementedError
