"""A user's driver program that fits twice at once, with three ranks each, in a session with four slots.

Arguments: the master or remote address, a folder, then name=value settings of the session; "replaces" lets both fits
replace lost ranks. Lines of the launcher go to
stderr; while the first fit runs, the second waits until the file ``go`` is in the folder.
"""

import json
import sys
import threading
import time
from pathlib import Path

import torch
from pyspark.sql import SparkSession
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator import TorchEstimator
from spark_estimator.store import Store

where, folder = sys.argv[1], Path(sys.argv[2])
SIZE, SLOTS = 3, 4
REPLACES = "replaces" in sys.argv


class Writes:
    """A callback: notes when the ranks begin and end; those of "first" wait for the file."""

    def __init__(self, name, waits):
        self._name, self._waits, self._folder = name, waits, str(folder)

    def on_train_begin(self, model, optimizer):
        (Path(self._folder) / f"{self._name}.{hvd.rank()}.began").touch()
        while self._waits and not (Path(self._folder) / "go").exists():
            time.sleep(0.05)

    def on_train_end(self):
        (Path(self._folder) / f"{self._name}.{hvd.rank()}.ended").touch()


def session():
    builder = SparkSession.builder.appName("two fits")
    if where.startswith("sc://"):
        return builder.remote(where).getOrCreate()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        **dict(setting.split("=", 1) for setting in sys.argv[3:] if "=" in setting),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(where).getOrCreate()


def fit(spark, name, waits):
    """The history of a fit, in a pool with its name where the session has pools."""
    if not where.startswith("sc://"):
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    model = nn.Linear(1, 1)
    estimator = TorchEstimator(
        num_proc=SIZE,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=nn.MSELoss(),
        feature_cols=["x"],
        label_cols=["y"],
        epochs=2,
        verbose=0,
        random_seed=1,
        callbacks=[Writes(name, waits)],
        **({"store": Store.create(str(folder / "store")), "materialize": True, "max_restarts": 1} if REPLACES else {}),
    )
    frame = spark.range(300).selectExpr("cast(id % 7 as float) as x", "cast(id % 7 * 2 as float) as y")
    return [row["train_loss"] for row in estimator.fit(frame).getHistory().to_rows()]


def hold(batches):
    """Takes a slot until the file ``free`` is there."""
    (folder / f"held.{time.monotonic_ns()}").touch()
    while not (folder / "free").exists():
        time.sleep(0.02)
    yield from batches


def together(spark):
    """Both fits, which begin while another job holds all slots: Spark may then serve them as it likes."""
    holder = threading.Thread(target=spark.range(0, SLOTS, 1, SLOTS).mapInArrow(hold, "id long").collect)
    holder.start()
    while len(list(folder.glob("held.*"))) < SLOTS:
        time.sleep(0.05)
    results = {}

    def run(name):
        try:
            results[name] = fit(spark, name, False)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    time.sleep(3)  # both have submitted their stages
    (folder / "free").touch()
    for thread in [*threads, holder]:
        thread.join()
    return results


def queued(spark):
    """The second fit begins while the first runs."""
    results = {}
    first = threading.Thread(target=lambda: results.update(first=fit(spark, "first", True)))
    first.start()
    while len(list(folder.glob("first.*.began"))) < SIZE:
        assert first.is_alive()
        time.sleep(0.05)
    results["second"] = fit(spark, "second", False)
    first.join()
    ended = max(path.stat().st_mtime for path in folder.glob("first.*.ended"))
    began = min(path.stat().st_mtime for path in folder.glob("second.*.began"))
    return results | {"one after the other": ended <= began}


def main():
    spark = session()
    results = {"together": together(spark)}
    print("QUEUED", flush=True)
    results["queued"] = queued(spark)
    spark.stop()
    print("RESULT " + json.dumps(results), flush=True)


main()
