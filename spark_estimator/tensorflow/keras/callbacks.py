"""``horovod.tensorflow.keras.callbacks``: as `spark_estimator.keras.callbacks`, but for the order of arguments."""

from __future__ import annotations

from typing import Any

from spark_estimator.keras import callbacks as _callbacks
from spark_estimator.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BestModelCheckpoint(_callbacks.BestModelCheckpoint):
    """Keeps the model of the best epoch so far; see `spark_estimator.keras.callbacks.BestModelCheckpoint`."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str | None = None,
    ) -> None:
        super().__init__(monitor, verbose, mode, save_freq, save_weights_only=save_weights_only, filepath=filepath)
