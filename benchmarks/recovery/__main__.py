"""Kills ranks of an estimator's training at random moments, and times what that costs.

``python -m benchmarks.recovery [--framework torch] [--np 3] [--kills 20] [--step-ms 100] [--every SECONDS] [--seed N]``
trains a small model with dropout and batch normalization, whose steps wait as long as ``step-ms``, as they do for an
accelerator; of PyTorch, of Lightning, or of Keras with one of its backends.
Ranks run on this machine, without Spark. Three trainings follow each other, by the same code of the estimator's ranks:

- *undisturbed*: no kills;
- *replaced*: each killed rank is replaced (``max_restarts`` of an estimator whose ranks read files);
- *restarted*: all ranks start again from the last checkpoint (``max_restarts`` of the others), with ``--keep`` steps
  between two checkpoints; with Lightning, an epoch.

Each kill is a SIGKILL of a random rank, `every` seconds after the job was at full speed again, or after a random time
of up to three seconds. Printed for each way: the seconds from the kill until all ranks have made a step again (median
and longest), how many batches were computed twice for each kill, and the goodput: the time of the undisturbed training
as a part of this one's. Histories and parameters are compared with the undisturbed training's, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy

from benchmarks.command_line import ended_by_signals, positive
from spark_estimator.elastic.rounds import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local

FRAMEWORKS = ("torch", "lightning", "keras-tensorflow", "keras-jax", "keras-torch")
WIDTH, BATCH = 8, 8
# Columns of the file in which ranks count: process id, batches of this process, batches of all.
_PID, _BATCHES, _ALL = range(3)


def counts(folder: str, ranks: int) -> Any:
    """[ranks, 3] the counts of the ranks, in a file that all processes map."""
    path = Path(folder, "counts")
    if not path.exists():
        numpy.zeros((ranks, 3), numpy.int64).tofile(path)
    return numpy.memmap(path, numpy.int64, "r+", shape=(ranks, 3))


def rank_main(options: dict[str, Any], way: str) -> Any:
    """On every rank. Returns rank 0's history and parameters."""
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, files_at
    from spark_estimator.data.preparation import Preparation
    from spark_estimator.estimators.train_spec import TrainSpec
    from spark_estimator.store import Store

    folder = f"{options['folder']}/{way}"

    def counted() -> None:
        """Counts a batch, and waits as for an accelerator."""
        from spark_estimator.collectives import context

        row = counts(folder, context.size())[context.rank()]
        row[_PID], row[_BATCHES], row[_ALL] = os.getpid(), row[_BATCHES] + 1, row[_ALL] + 1
        time.sleep(options["step_ms"] / 1000)

    framework, backend = options["framework"].partition("-")[::2]
    if framework == "keras":
        made = in_keras(counted, backend)
    else:
        made = in_torch(counted) if framework == "torch" else in_lightning(counted)
    result = made.train(
        TrainSpec(
            inputs=(Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)),),
            labels=(Field(("y",), ("c1",), (1,), "float32", ()),),
            weight=None,
            held_share=0,
            seed=1,
            batch_size=BATCH,
            val_batch_size=BATCH,
            epochs=options["epochs"],
            shuffle=True,
            verbose=0,
            backward_passes_per_step=1,
            use_gpu=False,
            train_steps=None,
            validation_steps=None,
            patience=None,
            restore_best=False,
            store=Store.create(f"{folder}/store") if way == "restarted" else None,
            checkpoint_steps=options["keep"] if way == "restarted" else None,
            run_id="run",
            large=1 << 40,
            source=FileRows(files_at(f"{options['folder']}/rows.parquet"), Preparation(("x", "y"))),
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
    from spark_estimator.estimators.keras.objects import loaded
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
    parts = KerasEstimator(model=model, label_cols=["y"], callbacks=[Counting()])._training().framework

    def parameters(state: bytes) -> list[bytes]:
        return [value.tobytes() for value in loaded(state, {}).get_weights()]

    return Made(parts, train, parameters)


@dataclass
class Killer:
    """Kills ranks of one training, from a thread of the launcher.

    Attributes:
        seconds: [kills] from each kill until all ranks had made a step again.
    """

    folder: str
    ranks: int
    kills: int
    every: float | None
    chance: random.Random
    seconds: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Returns when all kills are made, or the training is over."""
        rows = counts(self.folder, self.ranks)
        while len(self.seconds) < self.kills and self._at_full_speed(rows):
            if self._over.wait(self.every if self.every is not None else self.chance.uniform(0, 3)):
                return
            victim = int(rows[self.chance.randrange(self.ranks)][_PID])
            rows[:, _BATCHES] = 0
            began = time.monotonic()
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                return
            rows[rows[:, _PID] == victim, _PID] = 0
            if not self._at_full_speed(rows):
                return
            self.seconds.append(time.monotonic() - began)

    def _at_full_speed(self, rows: Any) -> bool:
        """Waits until each rank has a process, and has begun its second batch. False: the training is over."""
        while not ((rows[:, _PID] > 0) & (rows[:, _BATCHES] > 1)).all():
            if self._over.wait(0.005):
                return False
        return True

    def end(self) -> None:
        """The training is over."""
        self._over.set()


def timed(way: str, options: dict[str, Any], kills: int, every: float | None, seed: int) -> dict[str, Any]:
    """One training. Returns its time, result, kills and counts."""
    size = options["np"]
    folder = f"{options['folder']}/{way}"
    os.makedirs(folder)
    rows = counts(folder, size)
    killer = Killer(folder, size, kills, every, random.Random(seed))
    thread = threading.Thread(target=killer.run, daemon=True)
    thread.start()
    began = time.monotonic()
    try:
        if way == "restarted":
            limits = Limits(kills, timedelta(hours=2))
            results = run_local(rank_main, size, JobOptions(args=(options, way), limits=limits))
        else:
            terms = Terms(size, size, replace=True, reset_limit=kills, standby=options["standby"])
            results = run_elastic_local(rank_main, terms, JobOptions(args=(options, way)))
    finally:
        killer.end()
        thread.join()
    seconds = time.monotonic() - began
    return {"seconds": seconds, "result": results[0], "kills": killer.seconds, "batches": rows[:, _ALL].tolist()}


def main() -> int:
    """Returns 0 when the numbers of all trainings are those of the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="torch", choices=FRAMEWORKS, help="whose estimator trains (torch)")
    parser.add_argument("--np", type=positive, default=3, help="ranks (3)")
    parser.add_argument("--kills", type=positive, default=20, help="the most kills of each way (20)")
    parser.add_argument("--step-ms", type=float, default=100, help="each step waits so long (100)")
    parser.add_argument("--steps", type=positive, default=200, help="of an epoch (200)")
    parser.add_argument("--epochs", type=positive, default=3, help="(3)")
    parser.add_argument("--keep", type=positive, default=50, help="steps between two checkpoints of 'restarted' (50)")
    parser.add_argument("--every", type=float, help="seconds at full speed between two kills; default: random, up to 3")
    parser.add_argument("--standby", type=int, default=0, help="processes that wait for a loss, of 'replaced' (0)")
    parser.add_argument("--seed", type=int, default=1, help="of the kills (1)")
    parser.add_argument("--ways", default="replaced,restarted", help="replaced,restarted")
    arguments = parser.parse_args()
    import pyarrow
    import pyarrow.parquet

    wrong = 0
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder, ended_by_signals():
        options = {**vars(arguments), "folder": folder}
        inputs = numpy.random.default_rng(0).normal(size=(arguments.np * BATCH * arguments.steps, WIDTH))
        table = {"x": list(inputs.astype(numpy.float32)), "y": inputs.sum(axis=1).astype(numpy.float32)}
        pyarrow.parquet.write_table(pyarrow.table(table), f"{folder}/rows.parquet")
        plain = timed("undisturbed", options, 0, None, 0)
        steps = arguments.steps * arguments.epochs
        print(f"undisturbed: {steps} steps of {arguments.np} ranks in {plain['seconds']:.1f} s", flush=True)
        for way in arguments.ways.split(","):
            outcome = timed(way, options, arguments.kills, arguments.every, arguments.seed)
            kills = outcome["kills"]
            same = outcome["result"] == plain["result"]
            wrong += not same
            more = max(outcome["batches"]) - steps
            print(
                f"{way}: {len(kills)} kills in {outcome['seconds']:.1f} s; at full speed again after "
                f"{statistics.median(kills or [0]):.2f} s (longest {max(kills or [0]):.2f}); "
                f"{more / max(len(kills), 1):.2f} batches computed twice for each kill; goodput "
                f"{plain['seconds'] / outcome['seconds']:.3f}; numbers {'the same' if same else 'DIFFER'}",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
