"""The demo on a cluster: ``demo.py function`` and ``demo.py estimator``, each in its kind of session.

CLUSTER_MASTER and CLUSTER_CONNECT are the addresses. Without CLUSTER_MASTER, ``spark-submit`` chooses the master. Other
settings come from spark-defaults.conf (SPARK_CONF_DIR).
"""

from __future__ import annotations

import os
import sys
import time

EPOCHS = 6


def function() -> int:
    """A function on two ranks, one on each worker, through a driver that connects to the standalone master."""
    from pyspark.sql import SparkSession

    from spark_estimator import HorovodRunner

    def train(epochs):
        import os
        import socket

        import spark_estimator.torch as hvd
        from spark_estimator import demo

        accuracy = demo.train(epochs)
        # An executor's working directory is in the folder of its worker.
        return accuracy, hvd.allgather_object(f"{socket.gethostname()}:{os.getcwd()}")

    builder = SparkSession.builder.appName("demo: a function on two workers")
    if master := os.environ.get("CLUSTER_MASTER"):
        builder = builder.master(master)
    began = time.monotonic()
    spark = builder.getOrCreate()
    print(f"== HorovodRunner(np=2) at {spark.sparkContext.master}", flush=True)
    ready = time.monotonic()
    accuracy, folders = HorovodRunner(np=2, driver_log_verbosity="all").run(train, epochs=EPOCHS)
    done = time.monotonic()
    spark.stop()
    for rank, folder in enumerate(folders):
        print(f"rank {rank} ran in {folder}")
    print(f"accuracy {accuracy:.3f}; session {ready - began:.1f} s, job {done - ready:.1f} s", flush=True)
    if len(set(folders)) != 2:
        print("The ranks did not run on two workers.", file=sys.stderr)
        return 1
    return 0 if accuracy > 0.8 else 1


def estimator() -> int:
    """A small TorchEstimator fit and transform through the Spark Connect server."""
    import torch
    from pyspark.sql import SparkSession, functions

    from spark_estimator import TorchEstimator

    connect = os.environ["CLUSTER_CONNECT"]
    print(f"== TorchEstimator at {connect}", flush=True)
    began = time.monotonic()
    spark = SparkSession.builder.remote(connect).getOrCreate()
    df = spark.range(4000).select((functions.rand(1) * 2 - 1).alias("x"), (functions.rand(2) * 2 - 1).alias("y"))
    df = df.withColumn("inside", (functions.hypot("x", "y") < 0.8).cast("int"))
    ready = time.monotonic()

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    trained = TorchEstimator(
        num_proc=2,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        loss=torch.nn.CrossEntropyLoss(),
        feature_cols=["x", "y"],
        label_cols=["inside"],
        epochs=EPOCHS,
        random_seed=1,
    ).fit(df)
    fitted = time.monotonic()
    rows = trained.transform(df).select("inside", "inside__output").collect()
    right = sum((row["inside__output"][1] > row["inside__output"][0]) == bool(row["inside"]) for row in rows)
    done = time.monotonic()
    spark.stop()
    print(f"{right} of {len(rows)} rows are classified correctly")
    print(f"session {ready - began:.1f} s, fit {fitted - ready:.1f} s, transform {done - fitted:.1f} s", flush=True)
    return 0 if right > 0.9 * len(rows) else 1


if __name__ == "__main__":
    if sys.argv[1:] not in (["function"], ["estimator"]):
        sys.exit("usage: demo.py function|estimator")
    sys.exit(function() if sys.argv[1] == "function" else estimator())
