"""A user's driver program: Lightning's `TorchEstimator` on files, with a module of the program's own and a store.

Arguments: the master or remote address; a folder that driver and executors share. It prints what it has found out on a
line ``RESULT {...}``.
"""

import json
import sys
import traceback

import lightning.pytorch as pl
import torch
from sessions import session
from torch import nn

from spark_estimator.lightning import TorchEstimator
from spark_estimator.store import Store

where, folder = sys.argv[1:]


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, point):
        return self.layer(point)

    def training_step(self, batch, number):
        return nn.functional.mse_loss(self(batch["point"]).reshape(-1), batch["y"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


class Ending(pl.Callback):
    """Rank 1 has had enough after two epochs."""

    def on_train_epoch_end(self, trainer, module):
        if trainer.global_rank == 1 and trainer.current_epoch == 1:
            trainer.should_stop = True


def main():
    spark = session(where)
    numbers = spark.range(0, 300, 1, 2).selectExpr("array(id / 300, id % 7 / 7) AS point")
    frame = numbers.selectExpr("*", "point[0] * 2 - point[1] AS y")
    torch.manual_seed(3)
    model = TorchEstimator(
        num_proc=2,
        model=Line(),
        feature_cols=["point"],
        label_cols=["y"],
        batch_size=15,
        epochs=9,
        callbacks=[Ending()],
        store=Store.create(f"{folder}/store"),
        run_id="run",
    ).fit(frame)
    near = model.transform(frame).filter("abs(y__output - y) < 0.5").count()
    print("RESULT " + json.dumps({"history": model.getHistory(), "near": near}), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
