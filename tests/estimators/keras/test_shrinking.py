"""`KerasEstimator`'s training in a job that continues on fewer ranks, and grows again: each row once in an epoch."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")
pytest.importorskip("pyspark")

from spark_estimator.elastic.rounds import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.estimators import keras_ranks
from tests.estimators.keras.test_recovery import folder

__all__ = ["folder"]

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

EPOCHS = 2
RATE = 2.0**-10

#: [kills] (rank, hook, its call on that process)
Kills = list[tuple[int, str, int]]


def recorded(folder: str, kills: Kills, step_seconds: float = 0, **changed: Any) -> Any:
    """History and bias of a training whose loss is the mean of the labels' magnitudes, with a gradient of 1.

    Each process writes, of each step that is about to be committed, its labels to a file: a line each.
    """
    import os
    import signal
    import time

    import keras

    import spark_estimator.keras as hvd
    from spark_estimator.collectives import rendezvous
    from spark_estimator.estimators.keras import loop, recovery
    from spark_estimator.estimators.keras.objects import loaded

    make_step, commit = loop.Loop._step, recovery.KerasCommits.step
    last: dict[str, Any] = {"round": "", "labels": []}

    def round_id() -> str:
        present = rendezvous.current()
        assert present is not None
        return present.job_id

    def step(self: Any, batch: Any) -> Any:
        last.update(round=round_id(), labels=batch.matrices[1].reshape(-1)[: batch.rows].tolist())
        return make_step(self, batch)

    def committed(self: Any, done: int) -> None:
        if last["round"] == round_id():  # else the step was interrupted
            with Path(folder, f"labels-{os.getpid()}").open("a") as file:
                file.write(json.dumps(last["labels"]) + "\n")
        last["round"] = ""
        time.sleep(step_seconds)
        commit(self, done)

    loop.Loop._step, recovery.KerasCommits.step = step, committed  # type: ignore[method-assign]

    class Killing(keras.callbacks.Callback):
        calls = Counter[str]()

        def reached(self, hook: str) -> None:
            self.calls[hook] += 1
            for number, kill in enumerate(kills):
                marker = Path(folder, f"killed-{number}")
                if kill == (hvd.rank(), hook, self.calls[hook]) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.reached("train")

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.reached("test")

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["number"] = epoch

    def magnitude(labels: Any, outputs: Any) -> Any:
        return keras.ops.abs(labels) + outputs - keras.ops.stop_gradient(outputs)

    layers = [keras.layers.Input((keras_ranks.WIDTH,)), keras.layers.Dense(1)]
    best = hvd.callbacks.BestModelCheckpoint(monitor="number", save_weights_only=True, mode="max")
    settings = {"optimizer": keras.optimizers.SGD(RATE), "loss": magnitude, "epochs": EPOCHS, "batch_size": 2}
    constant = hvd.callbacks.LearningRateScheduleCallback(RATE, lambda epoch: 1.0)
    callbacks = {"callbacks": [Killing(), constant], "checkpoint_callback": best}
    result = keras_ranks.trained(folder, keras.Sequential(layers), **settings, **callbacks, **changed)
    if result is None:
        return None
    bias = loaded(result.state, {}).get_weights()[1]  # uncompiled: the loss has no name of a module
    return result.history, float(bias[0])


def check(folder: Path, results: list[Any], held_share: float) -> None:
    lines = [line for file in folder.glob("labels-*") for line in file.read_text().splitlines()]
    labels = Counter(label for line in lines for label in json.loads(line))
    assert set(labels.values()) == {EPOCHS}, labels
    assert len(labels) == keras_ranks.ROWS - round(keras_ranks.ROWS * held_share)
    history, bias = next(result for result in results if result is not None)
    mean = float(numpy.abs(list(labels)).mean())
    assert [entry["train"]["loss"] for entry in history] == pytest.approx([mean] * EPOCHS, rel=1e-5)
    # Each step changes the bias by the rate times the number of ranks, each of which has a line of the step.
    assert bias == pytest.approx(-RATE * len(lines), rel=1e-5)


@pytest.mark.parametrize(
    ("kills", "held_share"),
    [
        ([(1, "train", 4)], 0.0),
        ([(0, "train", 3), (0, "train", 6)], 0.25),
        ([(2, "test", 1)], 0.25),
    ],
)
def test_without_a_replacement_the_others_have_the_rest_of_the_epoch(
    kills: Kills, held_share: float, folder: Path
) -> None:
    terms = Terms(3, 1, reset_limit=4, timeout=timedelta(seconds=90), patience=timedelta(0))
    options = JobOptions(args=(str(folder), kills), kwargs={"held_share": held_share})
    results = run_elastic_local(recorded, terms, options)
    assert len(results) == 3 - len(kills) == 3 - len(list(folder.glob("killed-*")))
    check(folder, results, held_share)


def test_a_process_that_comes_later_has_its_part_of_the_epoch(folder: Path) -> None:
    terms = Terms(3, 1, replace=True, reset_limit=4, timeout=timedelta(seconds=90), patience=timedelta(0))
    options = JobOptions(args=(str(folder), [(0, "train", 3)]), kwargs={"step_seconds": 3, "held_share": 0.25})
    results = run_elastic_local(recorded, terms, options)
    assert len(results) == 3, "it has grown again"
    check(folder, results, 0.25)
