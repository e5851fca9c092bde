"""The training whose ranks are killed: a small model of each framework, by the code of the estimators' ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

FRAMEWORKS = ("torch", "lightning", "keras-tensorflow", "keras-jax", "keras-torch")
WIDTH, BATCH = 8, 8
# Columns of the file in which ranks count: process id; batches of this process, and of all of a rank's processes; the
# times at which the batch after the first `WARM_UP` and the last one began, in nanoseconds.
PID, BATCHES, ALL, WARM, LAST = range(5)
WARM_UP = 50


def counts(folder: str, ranks: int) -> Any:
    """[ranks, 5] the counts of the ranks, in a file that all processes map."""
    path = Path(folder, "counts")
    if not path.exists():
        numpy.zeros((ranks, 5), numpy.int64).tofile(path)
    return numpy.memmap(path, numpy.int64, "r+", shape=(ranks, 5))


def write_rows(folder: str, rows: int) -> None:
    """The training's rows, as ``rows.parquet``."""
    import pyarrow
    import pyarrow.parquet

    inputs = numpy.random.default_rng(0).normal(size=(rows, WIDTH))
    table = {"x": list(inputs.astype(numpy.float32)), "y": inputs.sum(axis=1).astype(numpy.float32)}
    pyarrow.parquet.write_table(pyarrow.table(table), f"{folder}/rows.parquet")


def rank_main(options: dict[str, Any], way: str) -> Any:
    """On every rank. Returns rank 0's history and parameters.

    Args:
        options: `folder` with the rows, `framework`, `epochs`, `step_ms`, `keep`, steps between two checkpoints, and
            `gpu`.
        way: "restarted" writes checkpoints; the name of a subfolder for counts and checkpoints.
    """
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, find_files
    from spark_estimator.data.row_encoder import RowEncoder
    from spark_estimator.estimators.train_spec import TrainSpec
    from spark_estimator.store import Store

    folder = f"{options['folder']}/{way}"

    def counted() -> None:
        """Counts a batch, and waits as for an accelerator."""
        from spark_estimator.collectives import context

        row = counts(folder, context.size())[context.rank()]
        row[PID], row[BATCHES], row[ALL] = os.getpid(), row[BATCHES] + 1, row[ALL] + 1
        row[LAST] = time.monotonic_ns()
        if row[ALL] == WARM_UP:
            row[WARM] = row[LAST]
        time.sleep(options["step_ms"] / 1000)

    framework, backend = options["framework"].partition("-")[::2]
    stored = way == "restarted" or (way == "replaced" and framework != "torch")
    if framework == "keras":
        made = in_keras(counted, backend)
    else:
        made = in_torch(counted) if framework == "torch" else in_lightning(counted)
    x = Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,))
    y = Field(("y",), ("c1",), (1,), "float32", ())
    result = made.train(
        TrainSpec(
            inputs=(x,),
            labels=(y,),
            weight=None,
            held_share=0,
            seed=1,
            batch_size=BATCH,
            val_batch_size=BATCH,
            epochs=options["epochs"],
            shuffle=True,
            verbose=0,
            backward_passes_per_step=1,
            use_gpu=options.get("gpu", False),
            train_steps=None,
            validation_steps=None,
            patience=None,
            restore_best=False,
            store=Store.create(f"{folder}/store") if stored else None,
            checkpoint_steps=options["keep"] if stored else None,
            run_id="run",
            large=1 << 40,
            source=FileRows(find_files(f"{options['folder']}/rows.parquet"), RowEncoder(("x", "y"), (x, y))),
            held_source=None,
            framework=made.parts,
        )
    )
    return None if result is None else (json.dumps(result.history), made.parameters(result.state))


@dataclass(frozen=True)
class Made:
    """A model to train.

    Attributes:
        parts: of the `TrainSpec`.
        train: of the estimator's ranks.
        parameters: of a result's state, as what can be compared.
    """

    parts: Any
    train: Callable[[Any], Any]
    parameters: Callable[[bytes], Any]


def in_torch(counted: Callable[[], None]) -> Made:
    """A model of PyTorch, each of whose steps calls `counted`."""
    import torch
    from torch import nn

    from spark_estimator.estimators.torch.losses import TorchParts
    from spark_estimator.estimators.torch.training import train

    class Counting(nn.MSELoss):
        """Counts the batches of training."""

        def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            if torch.is_grad_enabled():
                counted()
            return super().forward(output, label)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))
    parts = TorchParts(net, torch.optim.Adam(net.parameters(), 1e-3), [Counting()], [1.0], [[]])
    return Made(parts, train, lambda state: state)


def in_lightning(counted: Callable[[], None]) -> Made:
    """A LightningModule, each of whose steps calls `counted`."""
    import lightning.pytorch as pl
    import torch
    from torch import nn

    from spark_estimator.estimators.lightning.parts import LightningParts
    from spark_estimator.estimators.lightning.training import train

    class Learner(pl.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            counted()
            loss = nn.functional.mse_loss(self.net(batch["x"]).reshape(-1), batch["y"])
            self.log("train_loss", loss, batch_size=BATCH)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Made(LightningParts("lightning.pytorch", Learner(), plain=None), train, lambda state: state)


def in_keras(counted: Callable[[], None], backend: str) -> Made:
    """A model of Keras, each of whose steps calls `counted`."""
    os.environ |= {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    import keras

    from spark_estimator import KerasEstimator
    from spark_estimator.estimators.keras.objects import load_dumped
    from spark_estimator.estimators.keras.start import train

    class Counting(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
        """Counts the batches of training."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            counted()

    keras.utils.set_random_seed(0)
    layers = keras.layers
    hidden = [layers.Dense(64), layers.BatchNormalization(), layers.Dropout(0.2)]
    model = keras.Sequential([layers.Input((WIDTH,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    parts = KerasEstimator(model=model, label_cols=["y"], callbacks=[Counting()])._make_training().framework

    def parameters(state: bytes) -> list[bytes]:
        return [value.tobytes() for value in load_dumped(state, {}).get_weights()]

    return Made(parts, train, parameters)
