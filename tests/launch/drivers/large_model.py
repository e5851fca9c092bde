"""A user's driver program that predicts with a model that is larger than a message of Spark Connect may be.

Argument: the address of a Spark Connect server.
"""

import json
import sys

import cloudpickle
import torch
from pyspark.sql import SparkSession
from torch import nn

from spark_estimator import TorchModel
from spark_estimator.data.fields import Field

cloudpickle.register_pickle_by_value(sys.modules[__name__])
NUMBERS = 40_000_000


class Large(nn.Linear):
    """A linear layer with 160 MB of numbers, that returns what its process has of their file: (MiB, MiB of copies)."""

    def __init__(self):
        super().__init__(3, 1)
        self.large = nn.Parameter(torch.zeros(NUMBERS))

    def forward(self, x):
        import os
        import re

        self.large.sum()
        sizes = {"Rss": 0, "Anonymous": 0}
        with open("/proc/self/smaps") as maps:
            for part in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps.read(), flags=re.MULTILINE):
                if ".model" in part.split("\n")[0]:
                    for name in sizes:
                        sizes[name] += int(re.search(rf"^{name}: +(\d+) kB", part, re.MULTILINE)[1]) // 1024
        facts = [x.new_full((len(x), 1), float(number)) for number in (*sizes.values(), os.getpid())]
        return torch.cat([super().forward(x) + self.large[:1], *facts], 1)


def main():
    torch.manual_seed(1)
    model = TorchModel(
        model=Large(),
        inputs=[Field(("x",), ("c0",), (3,), "float32", (3,))],
        outputs=[4],
        label_types=["float"],
        feature_columns=["x"],
        label_columns=["y"],
    )
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    frame = spark.range(64, numPartitions=8).selectExpr("array(cast(id as float), cast(id % 7 as float), 1f) as x")
    results = []
    for _ in range(2):
        rows = model.transform(frame).collect()
        net = model.getModel()
        expected = nn.functional.linear(torch.tensor([row.x for row in rows]), net.weight, net.bias)
        results += [
            {
                "same": float(row.y__output[0]) == float(value),
                "mapped": row.y__output[1],
                "copied": row.y__output[2],
                "process": row.y__output[3],
            }
            for row, value in zip(rows, expected[:, 0], strict=True)
        ]
    spark.stop()
    print("RESULT " + json.dumps({"rows": results}), flush=True)


main()
