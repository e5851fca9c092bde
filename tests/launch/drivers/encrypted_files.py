"""A user's driver program: where ranks keep rows that Spark's tasks send, and rows that they read from files.

Arguments: the master; a folder; then name=value settings of the session.
"""

import json
import sys

import torch
from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner, TorchEstimator


def nameless():
    """The files without a name that this process has mapped into its memory."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.rstrip().endswith("(deleted)")}
    return sorted(paths)


def read(data):
    import spark_estimator.torch as hvd

    hvd.init()
    loader = data.loader(64)
    rows = sum(len(batch["y"]) for batch in loader)
    return hvd.allgather_object((rows, nameless()))


class Paths:
    """A callback that writes the mapped files of each rank of a fit into a folder."""

    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, epoch, logs):
        import spark_estimator.torch as hvd

        with open(f"{self.folder}/rank-{hvd.rank()}.json", "w") as file:
            json.dump(nameless(), file)


where, folder, *settings = sys.argv[1:]
builder = SparkSession.builder.master(where)
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
frame = spark.range(200).selectExpr("cast(id % 7 as float) AS a", "cast(id % 5 as float) AS y")
frame.write.parquet(f"{folder}/rows")
results = {}
for kind, rows in {"tasks": frame, "files": spark.read.parquet(f"{folder}/rows")}.items():
    results[f"run, {kind}"] = HorovodRunner(np=2).run(read, data=rows)
    model = torch.nn.Linear(1, 1)
    TorchEstimator(
        num_proc=2,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.02),
        loss=torch.nn.MSELoss(),
        feature_cols=["a"],
        label_cols=["y"],
        epochs=1,
        verbose=0,
        callbacks=[Paths(folder)],
    ).fit(rows)
    paths = []
    for rank in range(2):
        with open(f"{folder}/rank-{rank}.json") as file:
            paths.append((100, json.load(file)))
    results[f"fit, {kind}"] = paths
spark.stop()
print("RESULT " + json.dumps(results), flush=True)
