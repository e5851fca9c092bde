"""State beyond an epoch: checkpoints, resumed runs, early stopping, schedules; and the rest of a killed run."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch import nn

from spark_estimator import TorchEstimator, WorkerFailedError
from spark_estimator.checkpoint.writer_link import WriterLink
from spark_estimator.data.rank.spool import receive
from spark_estimator.env import ATTEMPT_VARIABLE, JOB_VARIABLE
from spark_estimator.estimators import backends
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.spark import SparkBackend
from spark_estimator.store import HDFSStore, Store
from spark_estimator.store.digests import make_seal
from tests.estimators.conftest import linear
from tests.estimators.histories import drop_times
from tests.estimators.torch_models import Draws
from tests.store.hadoop import core_site, stand_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)

# Functions whose calls kill a rank: by reference, so that they are found by who renames them.
HANDS_OVER = WriterLink.take_slot.__name__
SPOOLS_ROWS = receive.__name__


def chancy() -> nn.Module:
    """Its training depends on chance."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), Draws(), nn.Linear(8, 1))


def test_a_run_goes_on_from_its_checkpoint_to_the_very_same_numbers(
    line: DataFrame, estimator: Make, tmp_path: Path
) -> None:
    def run(store: Store, epochs: int) -> Any:
        net = chancy()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        parameters = {"lr_scheduler": scheduler, "store": store, "run_id": "run", "epochs": epochs, "validation": 0.2}
        return estimator(model=net, optimizer=optimizer, **parameters, random_seed=None if epochs > 2 else 9).fit(line)

    store = Store.create(str(tmp_path / "store"))
    run(store, 2)
    resumed = run(store, 4)  # the seed is the checkpoint's
    assert [entry["epoch"] for entry in resumed.getHistory()] == [0, 1, 2, 3]
    kept = torch.load(tmp_path / "store" / "runs" / "run" / "checkpoint", weights_only=True)
    assert (kept["epoch"], kept["seed"]) == (3, 9)
    rate = kept["optimizer"]["param_groups"][0]["lr"]
    assert rate == pytest.approx(2 * 0.01 / 16), "four epochs; as it is in force on two ranks"
    assert resumed.getOptimizer().param_groups[0]["lr"] == pytest.approx(0.01 / 16), "of one process, as in Horovod"

    net = chancy()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    whole = estimator(
        model=net, optimizer=optimizer, lr_scheduler=scheduler, epochs=4, validation=0.2, random_seed=9
    ).fit(line)
    assert drop_times(whole.getHistory()) == drop_times(resumed.getHistory())
    for name, value in whole.getModel().state_dict().items():
        assert torch.equal(value, resumed.getModel().state_dict()[name]), name


@pytest.mark.slow
def test_early_stopping_brings_back_the_best(line: DataFrame, estimator: Make) -> None:
    """A learning rate that makes it worse each epoch: the first one is the best."""
    net = linear()
    growing = torch.optim.SGD(net.parameters(), lr=0.45)
    scheduler = torch.optim.lr_scheduler.LambdaLR(growing, lambda epoch: 1.4**epoch)
    model = estimator(
        model=net,
        optimizer=growing,
        lr_scheduler=scheduler,
        epochs=30,
        batch_size=60,
        early_stopping_patience=2,
        restore_best=True,
        validation=0.25,
    ).fit(line)
    losses = [entry["validation"]["loss"] for entry in model.getHistory()]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 30
    held = line.count()
    predicted = model.transform(line).selectExpr("avg(pow(y__output - y, 2)) AS loss").first()
    assert held and predicted is not None
    assert predicted.loss < losses[-1], "not the last epoch's model"


class Dying(nn.Module):
    """Sends a rank a signal: in attempt n, at the k-th call of a named function, as ``deaths[n - 1]`` defines."""

    def __init__(self, *deaths: tuple[int, str, int], by: signal.Signals = signal.SIGKILL) -> None:
        super().__init__()
        self.deaths = deaths
        self.by = by
        self.inner = linear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        attempt = int(os.environ.get(ATTEMPT_VARIABLE, 0)) if os.environ.get(JOB_VARIABLE) else 0
        if 0 < attempt <= len(self.deaths) and os.environ["HOROVOD_RANK"] == str(self.deaths[attempt - 1][0]):
            _, name, number = self.deaths[attempt - 1]
            calls = itertools.count(1)

            def look(frame: Any, event: str, arg: Any) -> None:
                called = frame.f_code.co_name if event == "call" else getattr(arg, "__name__", "")
                if event in ("call", "c_call") and called == name and next(calls) == number:
                    os.kill(os.getpid(), self.by)

            sys.setprofile(look)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.next_batch(x)

    def next_batch(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)
        return output


class Patient(Callback):
    """Begins the second epoch when the first one's checkpoint is there: another process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_epoch_begin(self, epoch: int) -> None:
        deadline = time.monotonic() + 30
        beside = self.path.with_name(f".{self.path.name}.next")  # while it is written in place
        while epoch and (beside.exists() or not self.path.exists()) and time.monotonic() < deadline:
            time.sleep(0.02)


def ranks_left() -> list[int]:
    """Processes of this test run that are ranks."""
    pids = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if JOB_VARIABLE in process.environ():
                pids.append(process.pid)
    return pids


def left_in(folder: Path) -> list[str]:
    """Files, but for those that a run has in a store."""
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return [name for name in files if name not in ("runs/run/attempt.json", "runs/run/checkpoint")]


@pytest.mark.slow
def test_a_rank_killed_while_it_saves_is_named_and_leaves_nothing(
    line: DataFrame, estimator: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(tmp_path))
    net = Dying((0, HANDS_OVER, 2))  # as it hands over the second one
    with pytest.raises(WorkerFailedError, match=r"(?s)rank 0.*SIGKILL"):
        estimator(model=net, epochs=5, store=Store.create(str(tmp_path)), run_id="run").fit(line)
    # The process that writes outlives the rank and completes the first one.
    deadline = time.monotonic() + 30
    path = tmp_path / "runs" / "run" / "checkpoint"
    while not (path.exists() and left_in(tmp_path) == []) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_in(tmp_path) == []
    assert torch.load(path, weights_only=True)["epoch"] == 0, "the second one was not handed over"


@pytest.mark.slow
def test_a_store_on_hadoop_s_default_file_system(
    line: DataFrame, estimator: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By libhdfs. A rank is killed as it submits the second checkpoint; a torn one is left; then the run resumes."""
    variables = stand_in(tmp_path)
    (tmp_path / "hdfs_native.py").write_text("raise ImportError\n")
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(tmp_path), os.environ.get("PYTHONPATH", str(Path(__file__).parents[3]))]
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path / "conf", fs__defaultFS="hdfs://default:8020")))
    store = HDFSStore("/user/test/horovod")
    backend = SparkBackend(2, variables, verbose=0)
    parameters = {"num_proc": None, "backend": backend, "store": store, "run_id": "run", "epochs": 3}
    folder = tmp_path / "files/default:8020/user/test/horovod/runs/run"
    with pytest.raises(WorkerFailedError, match=r"(?s)rank 0.*SIGKILL"):
        estimator(model=Dying((0, HANDS_OVER, 2)), callbacks=[Patient(folder / "checkpoint")], **parameters).fit(line)
    # What a kill leaves in the midst of writing in place: the file beside it is whole.
    content = (folder / "checkpoint").read_bytes()
    (folder / ".checkpoint.next").write_bytes(content + make_seal(content))
    (folder / "checkpoint").write_bytes(b"torn")
    resumed = estimator(model=Dying(), **parameters).fit(line)
    assert sorted(os.listdir(folder)) == ["attempt.json", "checkpoint"]
    whole = estimator(epochs=3).fit(line)
    assert drop_times(resumed.getHistory()) == drop_times(whole.getHistory())
    assert not Path("/user/test/horovod").exists()


# 102 rows in batches of 16 are 7 steps an epoch.
IN_THE_THIRD_EPOCH = 7 * 2 + 5


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_killed_or_frozen_in_each_phase_change_nothing(
    sent: signal.Signals,
    line: DataFrame,
    estimator: Make,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While rows are spooled, in epoch 3 of 5, while a checkpoint is written, at the end; with a store and without."""
    spools = tmp_path / "spools"
    spools.mkdir()
    monkeypatch.setenv("SPARK_ESTIMATOR_SPOOL_FOLDER", str(spools))
    monkeypatch.setattr(backends, "replaces_ranks", lambda *_: False)  # as where executors do not reach the driver
    store = Store.create(str(tmp_path / "store"))
    undisturbed = estimator(epochs=5).fit(line)
    capfd.readouterr()
    deaths = ((1, SPOOLS_ROWS, 1), (1, "next_batch", IN_THE_THIRD_EPOCH), (0, HANDS_OVER, 3), (0, "on_train_end", 1))
    kept = {"store": store, "run_id": "run", "checkpoint_every_steps": 2, "callbacks": [Callback()]}
    with_store = estimator(model=Dying(*deaths, by=sent), epochs=5, max_restarts=4, verbose=1, **kept).fit(line)
    lines = "".join(capfd.readouterr())
    places = re.findall(r"run 'run' (?:resumes from its checkpoint )?((?:after|has already) .*)", lines)
    # What is written when rank 0 itself is killed depends on the moment.
    assert places[0] == "after epoch 2 and 4 steps (119 rows) of the next", lines
    without = estimator(
        model=Dying((1, "next_batch", IN_THE_THIRD_EPOCH), (0, "on_train_end", 1), by=sent),
        callbacks=[Callback()],
        epochs=5,
        max_restarts=2,
    ).fit(line)
    for disturbed in (with_store, without):
        assert drop_times(disturbed.getHistory()) == drop_times(undisturbed.getHistory())
        values = [value for _, value in disturbed.getModel().named_parameters()]
        for value, other in zip(values, undisturbed.getModel().parameters(), strict=True):
            assert torch.equal(value, other)
    assert left_in(tmp_path / "store") == left_in(spools) == ranks_left() == []


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        ({"store": 5}, TypeError, r"store must be a Store or its path, for example Store\.create"),
        ({"checkpoint_every_steps": 5}, ValueError, "checkpoint_every_steps needs a store"),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD(linear().parameters(), 0.1), 1)},
            ValueError,
            "lr_scheduler must be a scheduler of this estimator's optimizer",
        ),
    ],
)
def test_refused(
    line: DataFrame, estimator: Make, parameters: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        estimator(**parameters).fit(line)
