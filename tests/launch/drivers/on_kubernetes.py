"""A user's driver program in client mode on Kubernetes: a job that succeeds, and one whose pod is killed."""

import json

from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner


def places():
    """Return the sum over both ranks, and their hosts."""
    import socket

    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    total = float(hvd.allreduce(torch.tensor(hvd.rank() + 1.0), op=hvd.Sum))
    return total, hvd.allgather_object(socket.gethostname())


def endless():
    """Exchange until a rank is lost."""
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    for step in range(100_000_000):
        hvd.allreduce(torch.ones(1000), name="x")
        if step == 20 and hvd.rank() == 0:
            print("both ranks exchange", flush=True)


spark = SparkSession.builder.getOrCreate()
total, hosts = HorovodRunner(np=2, driver_log_verbosity="all").run(places)
try:
    HorovodRunner(np=2, driver_log_verbosity="all").run(endless)
    outcome = {"type": "", "text": ""}
except Exception as error:
    outcome = {"type": type(error).__name__, "text": str(error)}
print("RESULT " + json.dumps({"sum": total, "hosts": hosts, **outcome}), flush=True)
spark.stop()
