"""A user's driver program: fits of Lightning's estimator on files, of which one loses the executor of a rank, or is
warned that it will, while a process on standby waits in another executor.

Arguments: the master, with three executors of one core; a folder that driver and executors share; "killed" or "warned".
It prints what it has found out on a line ``RESULT {...}``.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

where, folder, harm = sys.argv[1:]
if harm == "warned":
    os.environ["SPARK_ESTIMATOR_PREEMPTION_SIGNAL"] = "USR1"
os.environ["SPARK_ESTIMATOR_STANDBY"] = "1"

import lightning.pytorch as pl  # noqa: E402  # after the setting
import torch  # noqa: E402  # as above
from pyspark.sql import SparkSession  # noqa: E402  # as above

from spark_estimator.lightning import TorchEstimator  # noqa: E402  # as above
from spark_estimator.store import Store  # noqa: E402  # as above


class Learner(pl.LightningModule):
    """Rank 1 is harmed once, in the second epoch, when as many processes as `awaited` have begun."""

    def __init__(self, folder, awaited):
        super().__init__()
        self.folder = folder
        self.awaited = awaited
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))

    def __setstate__(self, state):
        """A rank, or a process on standby, has received the module."""
        super().__setstate__(state)
        if "HOROVOD_ELASTIC" in os.environ:
            Path(self.folder, f"began-{os.getpid()}").touch()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, number):
        killed = Path(self.folder, "killed")
        if self.awaited and self.trainer.current_epoch == 1 and number == 2 and not killed.exists():
            while len(list(Path(self.folder).glob("began-*"))) < self.awaited:
                time.sleep(0.05)
            if self.trainer.global_rank == 1:
                killed.touch()
                if harm == "warned":
                    os.kill(os.getpid(), signal.SIGUSR1)
                else:
                    os.kill(executor(), signal.SIGKILL)
                    time.sleep(60)
        if killed.exists() and self.trainer.current_epoch == 1:
            time.sleep(0.2)  # while the launcher learns of a warning
        loss = torch.nn.functional.mse_loss(self(batch["x"]).reshape(-1), batch["y"])
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


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
    columns = ("array(cast(rand(1) as float), cast(rand(2) as float)) x",)
    frame = spark.range(400).repartition(3).selectExpr(*columns).selectExpr("x", "x[0] - x[1] y")
    results = []
    for awaited in (0, 3):
        for mark in Path(folder).glob("began-*"):
            mark.unlink()
        torch.manual_seed(1)
        estimator = TorchEstimator(
            model=Learner(folder, awaited),
            feature_cols=["x"],
            label_cols=["y"],
            num_proc=2,
            epochs=3,
            batch_size=16,
            random_seed=3,
            max_restarts=1,
            checkpoint_every_steps=2,
            materialize=True,
            store=Store.create(f"{folder}/store"),
        )
        model = estimator.fit(frame)
        weights = {name: value.tolist() for name, value in model.getModel().state_dict().items()}
        history = [{name: part for name, part in entry.items() if name != "time"} for entry in model.getHistory()]
        results.append({"history": repr(history), "weights": weights})
    print(
        "RESULT", json.dumps({"same": results[0] == results[1], "killed": Path(folder, "killed").exists()}), flush=True
    )


main()
