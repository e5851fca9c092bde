"""Estimators on backends: each argument of a `SparkBackend` has its effect; a backend's own run() is called."""

from __future__ import annotations

import os
import re
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from spark_estimator import TorchEstimator
from spark_estimator.env import ATTEMPT_VARIABLE
from spark_estimator.errors import JobTimeoutError, PreflightError, StartTimeoutError
from spark_estimator.estimators import backends
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.spark import Backend, LocalBackend, SparkBackend
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Make = Callable[..., TorchEstimator]
pytestmark = pytest.mark.timeout(240)


class Printing(Callback):
    """Prints what its rank sees; raises in the first attempt, on rank 1, if it shall."""

    def __init__(self, mortal: bool = False) -> None:
        self.mortal = mortal

    def on_train_begin(self, model: Any, optimizer: Any) -> None:
        rank, attempt = os.environ["HOROVOD_RANK"], os.environ.get(ATTEMPT_VARIABLE)
        if self.mortal and (rank, attempt) == ("1", "1"):
            os._exit(3)
        print(f"attempt {attempt}, A={os.environ.get('A')}, B={os.environ.get('B')}", flush=True)
        os.write(2, b"on stderr\n")


def fitted(made: TorchEstimator, line: DataFrame) -> None:
    model = made.fit(line)
    assert len(model.getHistory()) == made.getEpochs()
    assert not torch.equal(model.getModel().weight, made.getModel().weight)


@pytest.mark.slow
def test_each_argument_holds(
    line: DataFrame, estimator: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        streams: dict[str, Any] = {"stdout": out, "stderr": err, "prefix_output_with_timestamp": True}
        backend = SparkBackend(2, {"A": "1"}, verbose=2, max_restarts=1, start_timeout=100, timeout=200, **streams)
        fitted(estimator(num_proc=None, backend=backend, callbacks=[Printing(mortal=True)]), line)
    lines = (tmp_path / "out").read_text().splitlines()
    when = r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}"
    for rank in range(2):
        assert any(re.fullmatch(rf"{when}\[{rank}\]<stdout>:attempt 2, A=1, B=None", line) for line in lines), lines
        assert re.search(rf"(?m)^{when}\[{rank}\]<stderr>:on stderr$", (tmp_path / "err").read_text())
    printed = capfd.readouterr()
    assert re.search(r"spark_estimator: rank 1 runs on host \S+, pid \d+", printed.err)
    assert "attempt 2, A=1" not in printed.out


@pytest.mark.slow
def test_without_env_the_driver_s_goes_along(
    line: DataFrame, estimator: Make, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "of the driver")
    fitted(estimator(num_proc=None, backend=SparkBackend(1), epochs=1, callbacks=[Printing()]), line)
    assert "[0]<stdout>:attempt 1, A=of the driver, B=None\n" in capfd.readouterr().out
    fitted(estimator(num_proc=1, epochs=1, callbacks=[Printing()]), line)
    assert "attempt 1" not in capfd.readouterr().out, "without a backend the lines stay in the executors' logs"


@pytest.mark.slow
def test_limits_of_time_hold(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    """While another job has a slot, and while Spark computes the rows."""
    hold = tmp_path / "hold"
    hold.touch()

    def keep(batches: Any) -> Any:
        while hold.exists():
            time.sleep(0.1)
        yield from batches

    def limited(**limits: float) -> TorchEstimator:
        return estimator(num_proc=None, backend=SparkBackend(2, {}, verbose=0, **limits), read_files=False)

    session = line.sparkSession
    holder = threading.Thread(target=session.range(0, 1, 1, 1).mapInArrow(keep, "id long").collect)
    holder.start()
    try:
        with pytest.raises(StartTimeoutError, match=r"has not started train\(\) on any of 2 ranks within 3 seconds"):
            limited(start_timeout=3).fit(line)
        with pytest.raises(JobTimeoutError, match="within 3 seconds"):
            limited(timeout=3).fit(line)
    finally:
        hold.unlink()
        holder.join()

    def slow(batches: Any) -> Any:
        time.sleep(6)
        yield from batches

    with pytest.raises(StartTimeoutError, match="Spark is still computing the DataFrame's rows"):
        limited(start_timeout=3).fit(line.mapInArrow(slow, line.schema))


@pytest.mark.slow
def test_restarts_are_said_once(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_restarts=2, and 1 of the backend"):
        estimator(num_proc=None, backend=SparkBackend(2, {}, max_restarts=1), max_restarts=2).fit(line)
    backend = SparkBackend(2, {}, verbose=0)
    fitted(estimator(num_proc=None, backend=backend, max_restarts=1, callbacks=[Printing(mortal=True)]), line)
    with pytest.raises(ValueError, match="max_restarts=1 has no effect on Mine"):
        estimator(num_proc=None, backend=Mine(), max_restarts=1).fit(line)


def test_devices_that_ranks_cannot_have_are_named(
    line: DataFrame, estimator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    backend = SparkBackend(1, {"CUDA_VISIBLE_DEVICES": "3"}, verbose=0)
    with pytest.warns(UserWarning, match="CUDA_VISIBLE_DEVICES='3' has no effect"):
        fitted(estimator(num_proc=None, backend=backend, epochs=1), line)


class Mine(SparkBackend):
    """Adds a variable, as Horovod's users do."""

    calls = 0

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
        Mine.calls += 1
        return super().run(fn, args, kwargs, {**env, "B": "of run"})


class Alone:
    """Horovod's protocol without our class: it runs on this host."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
        return LocalBackend(2, {"B": "of run"}).run(fn, args, kwargs, env)

    def num_processes(self) -> int:
        return 2


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(Mine(2, {"A": "1"}), id="Mine", marks=pytest.mark.slow),
        pytest.param(LocalBackend(2, {"B": "of run"}), id="LocalBackend", marks=pytest.mark.slow),
        pytest.param(Alone(), id="Alone", marks=pytest.mark.slow),
    ],
)
def test_a_run_of_its_own_is_called(
    line: DataFrame, estimator: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str], backend: Any
) -> None:
    before = Mine.calls
    store = Store.create(str(tmp_path / "store"))
    fitted(estimator(num_proc=None, backend=backend, store=store, callbacks=[Printing()]), line)
    assert Mine.calls - before == isinstance(backend, Mine)
    printed = capfd.readouterr().out
    assert re.search(r"(?m)^\[1\]<stdout>:attempt 1, A=\S+, B=of run$", printed), printed
    with pytest.raises(ValueError, match=r"backend=.* starts the ranks with its own run\(\).*store=Store\.create"):
        estimator(num_proc=None, backend=backend).fit(line)
    line.select("features", "y").write.parquet(str(tmp_path / "bare"))
    bare = line.sparkSession.read.parquet(str(tmp_path / "bare"))
    fitted(estimator(num_proc=None, backend=backend, epochs=1), bare)


def test_a_run_that_returns_something_else(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    class Wrong(Backend):
        def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
            return []

        def num_processes(self) -> int:
            return 2

    with pytest.raises(TypeError, match=r"Wrong\.run\(\) returned \[\]: it has to return a list"):
        estimator(num_proc=None, backend=Wrong(), store=Store.create(str(tmp_path))).fit(line)


@pytest.mark.slow
def test_lightning_s_estimator_too(line: DataFrame, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="the extra 'lightning' is not installed")
    from spark_estimator.lightning import TorchEstimator as LightningEstimator
    from tests.estimators.lightning.test_estimator import Line

    class Begin(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            Printing().on_train_begin(module, None)

    with (tmp_path / "out").open("w") as out:
        LightningEstimator(
            model=Line(),
            backend=SparkBackend(2, {"A": "1"}, verbose=0, stdout=out, stderr=out),
            feature_cols=["features"],
            label_cols=["y"],
            callbacks=[Begin()],
            verbose=0,
        ).fit(line)
    assert "[1]<stdout>:attempt 1, A=1, B=None\n" in (tmp_path / "out").read_text()


def test_one_fit_at_a_time_trains_a_run(line: DataFrame, estimator: Make, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    errors: list[Exception] = []

    class Second(Backend):
        """While the ranks of the first fit would run, a second one begins: it must fail earlier."""

        def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
            assert not errors
            with pytest.raises(PreflightError, match=r"run_id='mine' is in use: a driver \(pid") as caught:
                estimator(num_proc=None, backend=self, store=store, run_id="mine").fit(line)
            errors.append(caught.value)
            return []

        def num_processes(self) -> int:
            return 2

    with pytest.raises(TypeError, match="has to return a list"):
        estimator(num_proc=None, backend=Second(), store=store, run_id="mine").fit(line)
    assert len(errors) == 1
    assert os.listdir(tmp_path / "runs" / "mine") == []


def test_parameters_that_need_a_store_warn_without_one() -> None:
    parameters: dict[str, object] = {"store": None, "run_id": "a", "max_restarts": 1, "mlflow": None}
    with pytest.warns(UserWarning) as caught:
        backends.warn_without_store(parameters.get, sends_rows=False)
    texts = [str(warning.message) for warning in caught]
    assert texts[0].startswith("run_id='a' has no effect without store: nothing is saved. Set store=Store.create(")
    assert texts[1].startswith("max_restarts=1 without store: a training whose ranks all restart loses every")
    assert [warning.filename for warning in caught] == [__file__] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backends.warn_without_store({**parameters, "store": "/path"}.get, sends_rows=True)
        backends.warn_without_store({**parameters, "max_restarts": 0, "mlflow": True}.get, sends_rows=True)
