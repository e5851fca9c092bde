"""Each rank's part of its training's MLflow run: counts steps, and samples its host's load by MLflow's monitors.

Both are sent to the driver as records. So no rank needs the tracking server, nor the driver's credentials for it.
"""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from spark_estimator.observe.driver_log import log_to_driver
from spark_estimator.observe.training_records import send_record

_THREAD = "spark_estimator system metrics"
_MONITORS = ("cpu_monitor.CPUMonitor", "disk_monitor.DiskMonitor", "network_monitor.NetworkMonitor")
# The first that finds one; MLflow has the second since 2.18.
_OF_GPUS = ("gpu_monitor.GPUMonitor", "rocm_monitor.ROCMMonitor")


@dataclass(frozen=True)
class RankTracking:
    """What the ranks record for the driver.

    Attributes:
        log_every_n_steps: batches between records; None: after each epoch only.
        system_seconds: between two samples of the ranks' hosts; None: these are not sampled.
    """

    log_every_n_steps: int | None = None
    system_seconds: float | None = None

    def start_sampling(self) -> None:
        """Begin to sample this rank's host, if that is wanted, until this process ends. Later calls do nothing."""
        samples = any(thread.name == _THREAD for thread in threading.enumerate())
        if self.system_seconds is not None and not samples:
            threading.Thread(target=_send_samples, args=(self.system_seconds,), name=_THREAD, daemon=True).start()


def _send_samples(seconds: float) -> None:
    """Send a record of each sample at the end of its interval. An error is logged on the driver."""
    try:
        monitors = [_monitor(name) for name in _MONITORS]
        monitors += _make_gpu_monitors()
        while True:
            for monitor in monitors:
                monitor.collect_metrics()
            time.sleep(seconds)
            values: dict[str, float] = {}
            for monitor in monitors:
                values |= {name: float(value) for name, value in monitor.aggregate_metrics().items()}
                monitor.clear_metrics()
            send_record({"system": values})
    except Exception as error:
        log_to_driver(f"mlflow: no system metrics of this rank are logged: {type(error).__name__}: {error}")


def _monitor(name: str) -> Any:
    module, _, kind = name.partition(".")
    return getattr(importlib.import_module(f"mlflow.system_metrics.metrics.{module}"), kind)()


def _make_gpu_monitors() -> list[Any]:
    for name in _OF_GPUS:
        try:
            return [_monitor(name)]
        except Exception:  # no GPU of this kind, or a package is missing
            continue
    return []
