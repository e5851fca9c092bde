"""The jobs by Ray: `TorchTrainer` with DDP, fed by Ray Data; predictions by `map_batches`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy
import ray
import ray.data
import ray.train
import ray.train.torch
import torch

from benchmarks.compare import job


def tell_time(_config: Any) -> None:
    """Leave the time at which rank 0 enters the function."""
    _report(repr(job.tell_time()).encode())


def train(config: dict[str, Any]) -> None:
    """Train on a worker."""
    torch.set_num_threads(1)
    model = ray.train.torch.prepare_model(job.make_model())
    optimizer = job.make_optimizer(model)
    rows = ray.train.get_dataset_shard("train")
    for _ in range(job.EPOCHS):
        batches = rows.iter_torch_batches(
            batch_size=job.BATCH, dtypes=torch.float32, local_shuffle_buffer_size=16 * job.BATCH
        )
        for batch in batches:
            features = torch.stack([batch[name] for name in job.COLUMNS], dim=1)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), batch["label"][:, None]).backward()
            optimizer.step()
    _report(job.dump(model.module))


def _report(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if ray.train.get_context().get_world_rank() == 0:
            (Path(folder) / "result").write_bytes(content)
            ray.train.report({}, checkpoint=ray.train.Checkpoint.from_directory(folder))
        else:
            ray.train.report({})


class _Predictor:
    def __init__(self, content: bytes) -> None:
        self._model = job.load(content)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        features = numpy.stack([batch[name] for name in job.COLUMNS], axis=1)
        with torch.no_grad():
            return {"prediction": self._model(torch.from_numpy(features)).numpy().reshape(-1)}


class ByRay:
    """Ray on this machine, with a processor more for each worker than the ranks use: Ray Data needs some."""

    def __init__(self, folder: str) -> None:
        os.environ.setdefault("RAY_worker_niceness", "0")  # as the ranks of the others
        ray.init(num_cpus=2 * job.RANKS, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._folder = folder
        self._storage = tempfile.TemporaryDirectory()

    def _run(self, function: Any, **datasets: Any) -> bytes:
        trainer = ray.train.torch.TorchTrainer(
            function,
            scaling_config=ray.train.ScalingConfig(num_workers=job.RANKS, use_gpu=False),
            run_config=ray.train.RunConfig(storage_path=self._storage.name),
            datasets=datasets,
        )
        result = trainer.fit()
        with result.checkpoint.as_directory() as folder:
            return (Path(folder) / "result").read_bytes()

    def start(self) -> float:
        """Return when rank 0 has entered the function."""
        return float(self._run(tell_time))

    def train(self) -> torch.nn.Module:
        """Return the model, trained on the files."""
        return job.load(self._run(train, train=ray.data.read_parquet(self._folder)))

    def predict(self, model: torch.nn.Module) -> float:
        """Return the mean prediction of the table's rows."""
        rows = ray.data.read_parquet(self._folder)
        arguments = (job.dump(model),)
        predictions = rows.map_batches(
            _Predictor, fn_constructor_args=arguments, concurrency=job.RANKS, batch_size=4096, batch_format="numpy"
        )
        return float(predictions.mean("prediction"))
