"""`KerasEstimator`'s training in a job that replaces lost ranks: the numbers of a training without a loss."""

from __future__ import annotations

import importlib.util
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")
pytest.importorskip("pyspark")

from spark_estimator.elastic.rounds import Terms
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.estimators import keras_ranks
from tests.ranks import run_ranks

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

Kills = list[tuple[str, int, int, int]]


def numbers(folder: str, kills: Kills, changed: dict[str, Any]) -> Any:
    """History, and weights with the optimizer's variables, on rank 0, of a training in which processes kill themselves.

    Args:
        kills: [kills] hook, rank, epoch and batch.
    """
    import os
    import signal

    import keras

    import spark_estimator.keras as hvd

    class Killing(keras.callbacks.Callback):
        """Kills its process once at each of `kills`, and counts the batches that it has seen."""

        def __init__(self) -> None:
            super().__init__()
            self.epoch = 0
            self.seen = 0

        def reached(self, hook: str, batch: int) -> None:
            for number, kill in enumerate(kills):
                marker = Path(folder, f"killed-{number}")
                if kill == (hook, hvd.rank(), self.epoch, batch) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.reached("before a step", batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen += 1
            self.reached("after a step", batch)

        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.reached("in validation", batch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.reached("after an epoch", 0)
            logs["seen"] = self.seen

    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1000.0)
    counting = [plateau, hvd.callbacks.BroadcastGlobalVariablesCallback(0)]  # which a checkpoint does not have
    settings = {
        "optimizer": keras.optimizers.Adam(0.05),
        "metrics": ["mae"],
        "held_share": 0.2,
        "epochs": 4,
        "callbacks": [Killing(), *([] if "stored" in changed else counting)],
        "checkpoint_callback": hvd.callbacks.BestModelCheckpoint(monitor="val_loss"),
    }
    result = keras_ranks.trained(folder, keras_ranks.chancy(), **{**settings, **changed})
    if result is None:
        return None
    model = keras_ranks.opened(result)
    variables = [*model.get_weights(), *(keras.ops.convert_to_numpy(each) for each in model.optimizer.variables)]
    return json.dumps(result.history), [value.tobytes() for value in variables]


def undisturbed(rank: int, folder: str, changed: dict[str, Any]) -> Any:
    import spark_estimator.keras as hvd

    hvd.init()
    return numbers(folder, [], {"run_id": "undisturbed", **changed})


def recovered(folder: Path, kills: Kills, changed: dict[str, Any], limit: int = 6) -> Any:
    terms = Terms(2, 2, replace=True, reset_limit=limit, timeout=timedelta(seconds=90))
    return run_elastic_local(numbers, terms, JobOptions(args=(str(folder), kills, changed)))[0]


@pytest.fixture(params=["torch", "jax", "tensorflow"])
def folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    for name, value in {
        "KERAS_BACKEND": request.param,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    keras_ranks.write_table(tmp_path)
    return tmp_path


@pytest.mark.parametrize("passes", [1, 2])
def test_kills_leave_the_numbers_of_an_undisturbed_training(folder: Path, passes: int) -> None:
    changed = {"backward_passes_per_step": passes}
    expected = run_ranks(2, undisturbed, 200, args=(str(folder), changed))[0]
    kills: Kills = [
        ("before a step", 1, 0, 3),
        ("in validation", 1, 0, 0),
        ("after a step", 0, 1, 2),
        ("after an epoch", 1, 2, 0),
        ("before a step", 0, 3, 1),
    ]
    history, variables = recovered(folder, kills, changed)
    assert [Path(folder, f"killed-{number}").exists() for number in range(len(kills))] == [True] * len(kills)
    assert json.loads(history) == json.loads(expected[0])
    assert variables == expected[1]


def without_counts(history: str) -> Any:
    """A history but for the number of batches that a callback has seen, which begins again in another job."""
    return [{**entry, "more": {**entry["more"], "seen": None}} for entry in json.loads(history)]


def test_losses_around_a_resume_within_an_epoch(folder: Path) -> None:
    expected = run_ranks(2, undisturbed, 200, args=(str(folder), {"stored": False}))[0]
    stored = {"stored": True, "checkpoint_steps": 2}
    first: Kills = [("before a step", 1, 1, 3)]
    with pytest.raises(WorkerFailedError, match="was killed by signal 9"):
        recovered(folder, first, stored, limit=0)
    # Before the first commit of the job, and after it.
    history, variables = recovered(folder, [*first, ("before a step", 1, 1, 2), ("after a step", 0, 1, 3)], stored)
    assert [Path(folder, f"killed-{number}").exists() for number in range(3)] == [True] * 3
    assert without_counts(history) == without_counts(expected[0])
    assert variables == expected[1]
