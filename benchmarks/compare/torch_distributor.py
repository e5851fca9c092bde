"""The jobs by PySpark: `TorchDistributor` with DDP over files that each rank reads, `predict_batch_udf`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.compare import job
from benchmarks.launch import session


def train(folder: str) -> bytes:
    """Train on a rank."""
    import os

    torch.distributed.init_process_group("gloo")
    try:
        return job.train_by_ddp(folder, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    finally:
        torch.distributed.destroy_process_group()


class ByTorchDistributor:
    """`TorchDistributor` in a Spark session with two slots."""

    def __init__(self, folder: str) -> None:
        self._session = session(f"local[{job.RANKS}]")
        self._spark = self._session.__enter__()
        self._folder = folder

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from pyspark.ml.torch.distributor import TorchDistributor

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return TorchDistributor(num_processes=job.RANKS, local_mode=False, use_gpu=False).run(function, *arguments)

    def start(self) -> float:
        """Return when rank 0 has entered the function."""
        result: float = self._run(job.tell_time)
        return result

    def train(self) -> torch.nn.Module:
        """Return the model, trained on the files of the DataFrame."""
        return job.load(self._run(train, self._folder))

    def predict(self, model: torch.nn.Module) -> float:
        """Return the mean prediction of the table's rows."""
        from pyspark.ml.functions import predict_batch_udf
        from pyspark.sql import functions, types

        content = job.dump(model)

        def make_predict() -> Callable[[Any], Any]:
            loaded = job.load(content)

            def predict(inputs: Any) -> Any:
                with torch.no_grad():
                    return loaded(torch.from_numpy(inputs)).numpy().reshape(-1)

            return predict

        shape: list[list[int] | None] = [[len(job.COLUMNS)]]
        predict = predict_batch_udf(
            make_predict, return_type=types.FloatType(), batch_size=4096, input_tensor_shapes=shape
        )
        row = functions.array(*job.COLUMNS)
        frame = self._spark.read.parquet(self._folder).select(predict(row).alias("prediction"))
        return float(frame.agg({"prediction": "avg"}).first()[0])
