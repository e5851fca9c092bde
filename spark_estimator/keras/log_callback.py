"""A Keras callback that logs the progress of training at the driver: `sparkdl.horovod.tensorflow.keras.LogCallback`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from spark_estimator.keras.callbacks import HorovodCallback
from spark_estimator.observe.driver_log import log_to_driver


class LogCallback(HorovodCallback):
    """Gives the end of each epoch, with its metrics, to `log_to_driver`; it reaches the driver at any verbosity.

    Every rank that has the callback logs; the driver adds the rank as a prefix.

    Args:
        per_batch_log: also log the end of each batch.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self._per_batch_log = per_batch_log
        self._epoch = 0
        self._began = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the time."""
        self._epoch, self._began = epoch, time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log ``epoch 1 of 3 ended after 0.5 s: loss 0.25, val_loss 0.3``."""
        seconds = time.monotonic() - self._began
        log_to_driver(
            f"{self._describe_count('epoch', epoch, 'epochs')} ended after {seconds:.1f} s{_format_metrics(logs)}"
        )

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log ``epoch 1 of 3, batch 2 of 10: loss 0.25``, if batches are logged."""
        if self._per_batch_log:
            epoch = self._describe_count("epoch", self._epoch, "epochs")
            log_to_driver(f"{epoch}, {self._describe_count('batch', batch, 'steps')}{_format_metrics(logs)}")

    def _describe_count(self, noun: str, number: int, total: str) -> str:
        """Return ``epoch 1 of 3``; Keras counts from 0, and does not always know how many there will be."""
        count = (self.params or {}).get(total)
        return f"{noun} {number + 1}" + (f" of {count}" if count else "")


def _format_metrics(logs: Mapping[str, Any] | None) -> str:
    """Return the metrics in words; '' without any."""
    texts = []
    for name, value in (logs or {}).items():
        try:
            texts.append(f"{name} {float(value):.4g}")
        except (TypeError, ValueError):  # a metric of several numbers
            texts.append(f"{name} {value}")
    return f": {', '.join(texts)}" if texts else ""
