"""A user's driver program: a function, a fit and an elastic job, in a session that may encrypt its traffic.

Arguments: the master; then name=value settings of the session.
"""

import json
import sys

import torch
from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner, TorchEstimator
from spark_estimator import spark as horovod_spark


def send_canaries(canary):
    import numpy

    import spark_estimator.torch as hvd
    from spark_estimator.collectives.rendezvous import find_current

    hvd.init()
    print(f"{canary}: a line of rank {hvd.rank()}")
    text = torch.frombuffer(bytearray(canary.encode() * 1000), dtype=torch.uint8)
    for step in range(3):
        rows = hvd.allgather(text, name=f"rows {step}")
    assert rows.numpy().tobytes() == canary.encode() * 1000 * hvd.size()
    assert numpy.all(hvd.allreduce(torch.ones(100_000), op=hvd.Sum).numpy() == hvd.size())
    return find_current().encrypted


def elastic(canary):
    import spark_estimator.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def work(state):
        text = torch.frombuffer(bytearray(canary.encode() * 1000), dtype=torch.uint8)
        return hvd.allgather(text, name="rows").numel()

    return work(hvd.elastic.TorchState(step=0))


where, canary, *settings = sys.argv[1:]
builder = SparkSession.builder.master(where)
for setting in settings:
    builder = builder.config(*setting.split("=", 1))
spark = builder.getOrCreate()
results = {"encrypted": HorovodRunner(np=2, driver_log_verbosity="all").run(send_canaries, canary=canary)}
frame = spark.createDataFrame([(float(n % 7), float(n % 3), float(n % 7 + n % 3)) for n in range(200)], ["a", "b", "y"])
model = torch.nn.Linear(2, 1)
estimator = TorchEstimator(
    num_proc=2,
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.02),
    loss=torch.nn.MSELoss(),
    feature_cols=["a", "b"],
    label_cols=["y"],
    epochs=3,
    verbose=0,
)
trained = estimator.fit(frame)
results["losses"] = [epoch["train"]["loss"] for epoch in trained.getHistory()]
results["predictions"] = trained.transform(frame).count()
results["elastic"] = horovod_spark.run_elastic(elastic, args=(canary,), num_proc=2, min_num_proc=2)
spark.stop()
print("RESULT " + json.dumps(results), flush=True)
