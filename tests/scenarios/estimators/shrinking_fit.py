"""A user's driver program: a fit of `TorchEstimator` on files, whose executor of rank 1 is killed in the second epoch.

Arguments: the master, with three executors of one core; a folder that driver and executors share. No process replaces
the lost rank in time; Spark starts another executor, and a process there joins later. It prints what it has found out
on a line ``RESULT {...}``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

where, folder = sys.argv[1:]
os.environ["SPARK_ESTIMATOR_REPLACE_WITHIN"] = "0"

import torch  # noqa: E402  # after the setting
from pyspark.sql import SparkSession  # noqa: E402  # as above

from spark_estimator import TorchEstimator  # noqa: E402  # as above
from spark_estimator.store import Store  # noqa: E402  # as above


class Loss(torch.nn.Module):
    """The mean of the labels. Kills the executor of rank 1 once; two ranks alone wait for the new process to begin."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.calls = 0

    def __setstate__(self, state):
        """A rank has received the loss."""
        super().__setstate__(state)
        if "HOROVOD_ELASTIC" in os.environ:
            Path(self.folder, f"began-{os.getpid()}").touch()

    def forward(self, output, label):
        import spark_estimator.torch as hvd

        killed = Path(self.folder, "killed")
        if hvd.is_initialized() and torch.is_grad_enabled():  # not on the driver, which tries the loss
            self.calls += 1
            if hvd.rank() == 1 and self.calls == 9 and not killed.exists():
                killed.touch()
                os.kill(executor(), signal.SIGKILL)
                time.sleep(60)
            while hvd.size() == 2 and self.calls > 12 and len(list(Path(self.folder).glob("began-*"))) < 4:
                time.sleep(0.05)
            time.sleep(0.3 if hvd.size() == 2 else 0)
        return torch.nn.functional.mse_loss(output, label) * 0 + label.mean()


def executor():
    """The executor's process, above this one."""
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def main():
    builder = SparkSession.builder.master(where).config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.executor.cores", "1")
    spark = builder.getOrCreate()
    frame = spark.range(360).repartition(3).selectExpr("array(cast(rand(1) as float)) x", "cast(id as float) y")
    model = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=Loss(folder),
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=3,
        epochs=4,
        batch_size=20,
        max_restarts=3,
        materialize=True,
        store=Store.create(f"{folder}/store"),
    )
    history = estimator.fit(frame).getHistory()
    losses = [entry["train"]["loss"] for entry in history]
    print("RESULT", json.dumps({"losses": losses, "killed": Path(folder, "killed").exists()}), flush=True)


main()
