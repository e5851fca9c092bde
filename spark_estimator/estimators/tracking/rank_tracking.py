"""Each rank's part of its training's MLflow run: counts steps, and lets MLflow sample the host's load."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_estimator.observe.driver_log import log_to_driver

# MLflow's default.
_SECONDS = 10.0
# With which a rank reaches the tracking server as the driver does.
_CREDENTIALS = ("MLFLOW_", "DATABRICKS_", "AWS_")
_OF_THE_DRIVER = ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


def credentials_in(environ: Mapping[str, str]) -> dict[str, str]:
    """The driver's variables with which its ranks reach the tracking server."""
    return {
        name: value for name, value in environ.items() if name.startswith(_CREDENTIALS) and name not in _OF_THE_DRIVER
    }


@dataclass(frozen=True)
class SystemMetrics:
    """The sampling of each rank's host.

    Attributes:
        run_id: of MLflow's run.
        tracking_uri: of its server.
        seconds: between two samples; None: as MLflow has it.
        environment: variables with which the server is reached, where the rank does not have them.
    """

    run_id: str
    tracking_uri: str
    seconds: float | None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def start(self, rank: int) -> None:
        """Samples in a separate thread until this process ends. An error is logged on the driver."""
        threading.Thread(target=self._run, args=(rank,), name="spark_estimator system metrics", daemon=True).start()

    def _run(self, rank: int) -> None:
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        try:
            import mlflow

            mlflow.set_tracking_uri(self.tracking_uri)
            mlflow.set_system_metrics_node_id(f"rank_{rank}")
            mlflow.set_system_metrics_sampling_interval(self.seconds or _SECONDS)
            mlflow.set_system_metrics_samples_before_logging(1)
            mlflow.start_run(run_id=self.run_id, log_system_metrics=True)
        except Exception as error:
            log_to_driver(f"mlflow: no system metrics of this rank are logged: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class RankTracking:
    """What the ranks record for the driver.

    Attributes:
        log_every_n_steps: batches between records; None: after each epoch only.
        system_metrics: None: the ranks' hosts are not sampled.
    """

    log_every_n_steps: int | None = None
    system_metrics: SystemMetrics | None = None

    def sample_system(self, rank: int) -> None:
        """Begins to sample this rank's host, where that is wanted."""
        if self.system_metrics is not None:
            self.system_metrics.start(rank)
