"""A user's driver program: fits whose rows come to the ranks in several ways, each of them once without a loss and once
with a rank that is killed, or warned that its machine is about to be taken back.

Arguments: the master; a folder that driver and executors share; the name of the signal that rank 1 gets, and how often,
as ``SIGKILL:30``; the kinds of fits. After one SIGKILL there is no slot but the lost rank's, and Spark gives its tasks
GPUs (they are not there); after several, and after a warning, other slots are free. SIGPWR goes to the rank's Spark
worker, which decommissions itself. It prints what it has found out of each on a line ``RESULT {...}``.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy
import torch
from pyspark.sql import SparkSession

from spark_estimator import TorchEstimator
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.store import Store

where, folder, name, *kinds = sys.argv[1:]
name, _, count = name.partition(":")
SIGNAL, COUNT = signal.Signals[name], int(count or 1)
KILLS = SIGNAL is signal.SIGKILL
HAS_GPUS = KILLS and COUNT == 1
SETTINGS = {
    "spark.executor.cores": "2",
    "spark.cores.max": "2" if HAS_GPUS else "4",
    **({"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "1"} if HAS_GPUS else {}),
    "spark.decommission.enabled": str(SIGNAL is signal.SIGPWR).lower(),
}


def victim():
    """The process that gets the signal."""
    pid, names = os.getpid(), []
    while SIGNAL is signal.SIGPWR and b"worker.Worker" not in b"".join(names[-1:]):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        names.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return pid


class Loss(torch.nn.MSELoss):
    """Writes down each step, its rank and device; sends rank 1's process the signal in the second epoch if it shall.

    That is after an exchange of ranks that step alone, and before the epoch's end.
    """

    def __init__(self, notes, dies):
        super().__init__()
        self.notes = notes
        self.dies = dies
        self.calls = 0

    def forward(self, output, label):
        import spark_estimator.torch as hvd

        if hvd.is_initialized() and torch.is_grad_enabled():  # not on the driver, which tries the loss
            self.calls += 1
            place = Path(self.notes, f"{hvd.rank()}-{os.environ.get('CUDA_VISIBLE_DEVICES')}-{os.getpid()}")
            with place.open("a") as file:
                file.write(f"{time.time()}\n")
            if self.dies and hvd.rank() == 1 and self.calls == 11:
                sent = len(list(Path(self.notes).glob("sent*")))
                if sent < COUNT:
                    Path(self.notes, f"sent{sent}").touch()
                    os.kill(victim(), SIGNAL)
            if self.calls > 11 and self.dies and not KILLS:
                time.sleep(0.05)  # while another process starts
        return super().forward(output, label)


class Decay(Callback):
    """Changes the model after each step, and draws a random number."""

    def on_train_begin(self, model, optimizer):
        self.model = model

    def on_batch_end(self, step, loss):
        torch.rand(())
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.99)


def blur(row):
    return {"x": numpy.asarray(row["x"], numpy.float32) + numpy.float32(numpy.random.normal()), "y": row["y"]}


def decode(content):
    return numpy.frombuffer(content, numpy.float32)


def fit(frame, kind, notes, dies):
    Path(notes).mkdir()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    parameters = {"store": Store.create(f"{folder}/store"), "materialize": kind != "rows by Spark"}
    parameters |= {
        "files": {"lr_scheduler": "linear"},
        "cache_bytes": {"cache_bytes": 1000, "buffer_bytes": 1000},
        "transformation_fn": {"transformation_fn": blur},
        "decoders": {"decoders": {"x": decode}},
        "rows by Spark": {},
        "local_sgd": {"sync": "local_sgd", "inner_steps": 4, "lr_scheduler": "linear"},
        "diloco": {"sync": "diloco", "inner_steps": 4},
    }[kind]
    estimator = TorchEstimator(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
        loss=Loss(notes, dies),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        epochs=1 + 2 * COUNT if KILLS else 30,
        batch_size=20,
        validation=0.1,
        random_seed=3,
        max_restarts=COUNT,
        # What a step changes after it is not in what peers keep of a lost rank.
        callbacks=[] if KILLS else [Decay()],
        **parameters,
    )
    trained = estimator.fit(frame)
    weights = [value.tolist() for value in trained.getModel().state_dict().values()]
    places = {path.name: [*map(float, path.read_text().split())] for path in Path(notes).glob("*-*")}
    history = [{name: part for name, part in entry.items() if name != "time"} for entry in trained.getHistory()]
    return [repr(history), weights], places


def find_gaps(times):
    """Seconds from the last step of each process of rank 1 to the first of the next one."""
    times = sorted(times)
    return [round(after[0] - before[-1], 2) for before, after in itertools.pairwise(times)]


def main():
    builder = SparkSession.builder.master(where).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    made = spark.range(240).repartition(3).selectExpr("array(float(sin(id)), float(cos(id * 0.3))) x")
    made = made.selectExpr("x", "x[0] - x[1] y")
    as_bytes = [(numpy.asarray(row.x, numpy.float32).tobytes(), row.y) for row in made.collect()]
    frames = {"decoders": spark.createDataFrame(as_bytes, "x binary, y float")}
    results = {}
    for kind in kinds:
        frame = frames.get(kind, made)
        (whole, undisturbed), (after, disturbed) = (
            fit(frame, kind, f"{folder}/{kind} {dies}", dies) for dies in (False, True)
        )
        results[kind] = {
            "same": whole == after,
            "repeated": sum(map(len, disturbed.values())) - sum(map(len, undisturbed.values())),
            "seconds": find_gaps([times for name, times in disturbed.items() if name.startswith("1-")]),
            "places": sorted(name.rpartition("-")[0] for name in disturbed),
            "left": [path.name for path in Path(folder).glob("store/*") if "copy" in path.name],
        }
    print("RESULT", json.dumps(results), flush=True)


main()
