"""The jobs by this package."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.compare import job
from benchmarks.launch import session


class Ours:
    """`TorchEstimator` and `HorovodRunner` in a Spark session with two slots."""

    def __init__(self, folder: str) -> None:
        self._session = session(f"local[{job.RANKS}]")
        self._spark = self._session.__enter__()
        self._folder = folder
        self._model: Any = None

    def start(self) -> float:
        """Return when rank 0 has entered the function."""
        from spark_estimator import HorovodRunner

        result: float = HorovodRunner(np=job.RANKS).run(job.tell_time)
        return result

    def train(self) -> torch.nn.Module:
        """Return the model, trained on the DataFrame."""
        from spark_estimator import TorchEstimator

        model = job.make_model()
        estimator = TorchEstimator(
            num_proc=job.RANKS,
            model=model,
            optimizer=job.make_optimizer(model),
            loss=torch.nn.functional.mse_loss,
            feature_cols=job.COLUMNS,
            label_cols=["label"],
            batch_size=job.BATCH,
            epochs=job.EPOCHS,
            verbose=0,
        )
        self._model = estimator.fit(self._spark.read.parquet(self._folder))
        trained: torch.nn.Module = self._model.getModel()
        return trained

    def predict(self, model: torch.nn.Module) -> float:
        """Return the mean prediction of the table's rows."""
        frame = self._model.transform(self._spark.read.parquet(self._folder))
        return float(frame.agg({"label__output": "avg"}).first()[0])
