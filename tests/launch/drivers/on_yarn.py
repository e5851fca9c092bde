"""A user's program for spark-submit: trains on rows of the cluster's file system, and keeps its results there.

Arguments: the folder; a file of this machine for the result, a JSON object with what each part gave, or its error; the
parts. Also a module ``of_files``, which ``--py-files`` brings.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
from pyspark.sql import SparkSession

from spark_estimator import HorovodRunner, TorchEstimator, TorchModel

folder, result, *parts = sys.argv[1:]
spark = SparkSession.builder.appName("rows of a cluster").getOrCreate()


def describe_rank():
    """The rank, the text of its file of --py-files, and its container."""
    import of_files

    import spark_estimator.torch as hvd

    hvd.init()
    print(f"a line of rank {hvd.rank()}", flush=True)
    return hvd.rank(), of_files.text(), os.environ.get("CONTAINER_ID", "")[:9]


def run():
    return HorovodRunner(np=2).run(describe_rank)


def rows():
    """Written by Spark, with Spark's rights."""
    spark.range(200).selectExpr("id / 100.0 as x", "id / 50.0 as y").write.mode("overwrite").parquet(f"{folder}/rows")
    return spark.read.parquet(f"{folder}/rows").count()


def make_estimator(store, run_id):
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    estimator = TorchEstimator(model=model, loss=torch.nn.MSELoss(), optimizer=optimizer, feature_cols=["x"])
    return estimator.setLabelCols(["y"]).setNumProc(2).setBatchSize(10).setStore(store).setRunId(run_id)


def fit():
    from spark_estimator.store import HDFSStore

    store = HDFSStore(f"{folder}/store")
    trained = make_estimator(store, "fit").setEpochs(3).fit(spark.read.parquet(f"{folder}/rows"))
    trained.write().overwrite().save(f"{folder}/model")
    loaded = TorchModel.load(f"{folder}/model")
    frame = loaded.transform(spark.read.parquet(f"{folder}/rows"))
    return len(trained.getHistory()), store.exists(store.get_checkpoint_path("fit")), frame.count()


def outlive():
    """The first attempt's application master is killed after a checkpoint; it is the parent of this process."""
    from spark_estimator.store import HDFSStore

    store = HDFSStore(f"{folder}/store")

    def kill():
        while not store.exists(store.get_checkpoint_path("outlive")):
            time.sleep(0.1)
        os.kill(os.getppid(), signal.SIGKILL)

    if os.environ["CONTAINER_ID"].endswith("_01_000001"):
        threading.Thread(target=kill, daemon=True).start()
    trained = make_estimator(store, "outlive").setEpochs(200).fit(spark.read.parquet(f"{folder}/rows"))
    return len(trained.getHistory())


def train(root):
    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer
    from spark_estimator.data import make_torch_dataloader

    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
    loader = make_torch_dataloader(f"{root}/rows", batch_size=10, feature_cols=["x"], label_cols=["y"])
    with Checkpointer(f"{root}/checkpoints", model=model, optimizer=optimizer, loader=loader, every_steps=5) as saver:
        first = saver.restore()
        for x, y in loader:
            optimizer.zero_grad()
            (model(x[:, None]) - y[:, None]).square().mean().backward()
            optimizer.step()
            saver.step()
    return first


def loop():
    """The second job continues after the first one's last checkpoint."""
    from spark_estimator.store.hadoop import find_default_filesystem

    root = f"{find_default_filesystem(folder, {})}{folder}"
    return [HorovodRunner(np=2).run(train, root) for _ in range(2)]


def read(root):
    from petastorm import make_batch_reader

    import spark_estimator.torch as hvd

    hvd.init()
    with make_batch_reader(f"{root}/rows", cur_shard=hvd.rank(), shard_count=2, num_epochs=1) as reader:
        count = sum(len(batch.x) for batch in reader)
    return int(hvd.allreduce(torch.tensor([count]), op=hvd.Sum)[0])


def petastorm():
    from spark_estimator.store.hadoop import find_default_filesystem

    return HorovodRunner(np=2).run(read, f"{find_default_filesystem(folder, {})}{folder}")


results = {}
for part in parts:
    began = time.time()
    try:
        results[part] = globals()[part]()
    except Exception as error:
        traceback.print_exc()
        results[part] = f"{type(error).__name__}: {error}"
    print(f"{part}: {results[part]} {time.time() - began:.1f} s", flush=True)
Path(result).write_text(json.dumps(results))
spark.stop()
