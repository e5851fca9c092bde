"""A user's driver program that predicts on a cluster whose worker announces two GPUs, for which there are stand-ins.

Four tasks run at a time, so that two share a GPU. Argument: a folder with the discovery script `gpus.sh`.
"""

import json
import sys
from pathlib import Path

import torch
from pyspark import TaskContext
from pyspark.sql import SparkSession
from torch import nn

from spark_estimator import TorchModel
from spark_estimator.data.fields import Field

folder = Path(sys.argv[1])


class Shows(nn.Linear):
    """Returns what a linear layer does, then the device, the GPU's address by Spark (-1: none) and the process."""

    def __setstate__(self, state):
        super().__setstate__(state)
        if TaskContext.get() is not None:
            from tests.estimators.torch import stand_in_cuda

            stand_in_cuda.stand_in_until_the_end(2)

    def forward(self, x):
        import os

        gpus = TaskContext.get().resources().get("gpu")
        address = -1 if gpus is None else int(gpus.addresses[0])
        device = -1 if x.device.type == "cpu" else x.device.index
        facts = [x.new_full((len(x), 1), float(number)) for number in (device, address, os.getpid())]
        return torch.cat([super().forward(x), *facts], 1)


def session():
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(folder / "gpus.sh"),
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "0.5",
    }
    builder = SparkSession.builder.master("local-cluster[1,4,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def rows_of(frame, model):
    rows = model.transform(frame).collect()
    known = model._model
    expected = nn.functional.linear(torch.tensor([row.x for row in rows]), known.weight, known.bias)
    return [
        {
            "same": float(row.y__output[0]) == float(value),
            "device": int(row.y__output[1]),
            "address": int(row.y__output[2]),
            "process": int(row.y__output[3]),
        }
        for row, value in zip(rows, expected[:, 0], strict=True)
    ]


def main():
    torch.manual_seed(1)
    model = TorchModel(
        model=Shows(3, 1),
        inputs=[Field(("x",), ("c0",), (3,), "float32", (3,))],
        outputs=[4],
        label_types=["float"],
        feature_columns=["x"],
        label_columns=["y"],
    )
    spark = session()
    frame = spark.range(64, numPartitions=8).selectExpr("array(cast(id as float), cast(id % 7 as float), 1f) as x")
    results = {device: rows_of(frame, model.setInferenceDevice(device)) for device in ("auto", "cuda", "cpu")}
    spark.stop()
    print("RESULT " + json.dumps(results), flush=True)


main()
