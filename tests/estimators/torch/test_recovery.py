"""`TorchEstimator`'s training in a job that replaces lost ranks: the numbers of a training without a loss."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
import torchmetrics
from torch import nn

from spark_estimator.collectives import rendezvous
from spark_estimator.data.fields import Field
from spark_estimator.data.kept_rows import KeptRows, estimate_row_bytes, find_longest_row, get_read_type
from spark_estimator.data.parquet import FileRows, find_files
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.data.transformation import Transformation
from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import WorkerFailedError
from spark_estimator.estimators.rank_run import KnownRun
from spark_estimator.estimators.torch.callbacks import Callback
from spark_estimator.estimators.torch.recovery import BegunRun, EndedEpochs
from spark_estimator.estimators.torch.steps.recipe import StepRecipe
from spark_estimator.estimators.torch.steps.schedules import read_schedule
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.estimators.histories import drop_times
from tests.ranks import run_ranks
from tests.scenarios.estimators.test_torch_resume import WIDTH, trained

ROWS = 203


class Killing(nn.MSELoss):
    """Kills its process once at each of some (rank, call) in training or in validation."""

    def __init__(self, folder: str, kills: list[tuple[int, int, bool]]) -> None:
        super().__init__()
        self._folder = folder
        self._kills = kills
        self._calls = {True: 0, False: 0}

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        import spark_estimator.torch as hvd

        trains = torch.is_grad_enabled()
        self._calls[trains] += 1
        if trains:
            with Path(self._folder, f"calls-{os.getpid()}").open("a") as file:
                file.write(".")
        for number, (rank, call, in_training) in enumerate(self._kills):
            marker = Path(self._folder, f"killed-{number}")
            if (hvd.rank(), self._calls[trains], trains) == (rank, call, in_training) and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(output, label)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    rows = numpy.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(numpy.float32)
    table = {"x": list(rows), "y": rows.sum(axis=1) + 1}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    return str(tmp_path)


def numbers(folder: str, kills: list[tuple[int, int, bool]], **changed: Any) -> Any:
    torch.set_num_threads(1)  # the order of sums depends on it
    result = trained(folder, loss=Killing(folder, kills), **changed)
    return None if result is None else (json.dumps(drop_times(result.history)), result.state)


def in_ranks(rank: int, folder: str) -> Any:
    return numbers(folder, [], run_id="undisturbed")


@pytest.mark.slow
def test_kills_leave_the_numbers_of_an_undisturbed_training(folder: str) -> None:
    undisturbed = run_ranks(2, in_ranks, 120, args=(folder,))[0]
    # 11 batches of training an epoch, and 3 of validation: the kills are in the first epoch, in its validation (of the
    # new process, whose count begins at 0), in the second, and of rank 0.
    kills = [(1, 3, True), (1, 2, False), (1, 9, True), (0, 20, True)]
    results = run_elastic_local(numbers, Terms(2, 2, replace=True, reset_limit=4), JobOptions(args=(folder, kills)))
    assert [Path(folder, f"killed-{number}").exists() for number in range(4)] == [True] * 4
    assert json.loads(results[0][0]) == json.loads(undisturbed[0])
    assert results[0][1] == undisturbed[1]


def make_function_parts(folder: str) -> dict[str, Any]:
    """The parts of a training whose batches a function makes, by chance, of rows that are kept."""
    first = pyarrow.parquet.read_table(f"{folder}/rows.parquet").to_batches()[0]

    def blur(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": row["x"] + numpy.random.normal(size=WIDTH).astype(numpy.float32), "y": row["y"]}

    fields = (Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)), Field(("y",), ("c1",), (1,), "float32", ()))
    then = RowEncoder(
        ("x", "y"), fields, transformation=Transformation(blur), transformation_columns=("x", "y"), by_name=True
    )
    types = {column.name: get_read_type(column.type) for column in first.schema}
    kept = KeptRows.of(types, estimate_row_bytes(find_longest_row(first), len(types)), then)
    return {"kept": kept, "source": FileRows(find_files(f"{folder}/rows.parquet"), kept)}


def find_parts(folder: str, how: str) -> dict[str, Any]:
    parts = make_function_parts(folder) if "function" in how else {}
    # Of 200 rows, 60 and 9.
    return {**parts, **({"limits": RowLimits(cache_bytes=1000, buffer_bytes=400)} if "limits" in how else {})}


def otherwise_read(folder: str, kills: list[tuple[int, int, bool]], how: str, **changed: Any) -> Any:
    return numbers(folder, kills, **find_parts(folder, how), **changed)


def otherwise_in_ranks(rank: int, folder: str, how: str) -> Any:
    return otherwise_read(folder, [], how, run_id="undisturbed")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["limits", "function", "function and limits"])
def test_kills_leave_the_numbers_also_of_rows_that_are_read_or_made_in_each_epoch(how: str, folder: str) -> None:
    undisturbed = run_ranks(2, otherwise_in_ranks, 120, args=(folder, how))[0]
    kills = [(1, 3, True), (1, 2, False), (1, 9, True), (0, 20, True)]
    options = JobOptions(args=(folder, kills, how))
    results = run_elastic_local(otherwise_read, Terms(2, 2, replace=True, reset_limit=4), options)
    assert [Path(folder, f"killed-{number}").exists() for number in range(4)] == [True] * 4
    assert json.loads(results[0][0]) == json.loads(undisturbed[0])
    assert results[0][1] == undisturbed[1]


def stepping_locally(folder: str, kills: list[tuple[int, int, bool]], sync: str, **changed: Any) -> Any:
    return numbers(folder, kills, parts={"sync": sync, "inner_steps": 3}, backward_passes_per_step=1, **changed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sync", ["local_sgd", "diloco"])
def test_kills_leave_the_numbers_where_ranks_step_alone(sync: str, folder: str) -> None:
    def calls(kills: list[tuple[int, int, bool]], run_id: str) -> tuple[Any, int]:
        options = JobOptions(args=(folder, kills, sync), kwargs={"run_id": run_id})
        result = run_elastic_local(stepping_locally, Terms(2, 2, replace=True, reset_limit=6), options)[0]
        return result, sum(path.stat().st_size for path in Path(folder).glob("calls-*"))

    undisturbed, steps = calls([], "undisturbed")
    # Exchanges follow batches 3, 6, 8 (where a checkpoint is due)...: within the first steps, right after an exchange,
    # in validation, and of rank 0.
    kills = [(1, 2, True), (1, 1, False), (0, 20, True), (1, 4, True)]
    disturbed, all_steps = calls(kills, "killed")
    assert [Path(folder, f"killed-{number}").exists() for number in range(4)] == [True] * 4
    assert json.loads(disturbed[0]) == json.loads(undisturbed[0])
    assert disturbed[1] == undisturbed[1]
    assert all_steps - 2 * steps <= 4 * 2 * 3, "each kill costs an exchange's steps, on two ranks"


class Spoiled(Killing):
    """Is no number where a label is large: in some batches of either rank, in each epoch."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        loss = super().forward(output, label)
        return loss * float("nan") if torch.is_grad_enabled() and bool((label > 5.0).any()) else loss


class Stopping(Callback):
    """Raises after a number of batches, on all ranks."""

    def __init__(self, most: int | None) -> None:
        self._left = most

    def on_batch_end(self, step: int, loss: float) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise InterruptedError


def with_all_switches(
    folder: str, kills: list[tuple[int, int, bool]], stop: int | None = None, **changed: Any
) -> tuple[str, bytes] | None:
    torch.set_num_threads(1)
    values = {"lr_scheduler": "cosine", "warmup_steps": 4, "warmup_ratio": 0.0}
    schedule = read_schedule(values.__getitem__)[0]
    recipe = StepRecipe(clip_norm=0.5, schedule=schedule, skips=True, validate_every_steps=3)
    metrics = [torchmetrics.MeanSquaredError(squared=False), torchmetrics.SpearmanCorrCoef()]
    names = [["rmse", "rho"]]
    parts = {"recipe": recipe, "precision": "fp16", "metrics": [metrics], "metric_names": names}
    parts |= {"callbacks": [Stopping(stop)]}
    changed |= {"monitor": "validation.rho", "mode": "max"}
    result = trained(folder, loss=Spoiled(folder, kills), parts=parts, **changed)
    return None if result is None else (json.dumps(drop_times(result.history)), result.state)


def resumed_with_all_switches(rank: int, folder: str) -> Any:
    whole = with_all_switches(folder, [], run_id="undisturbed")
    for stop in (17, 5):  # in the second epoch, and after the resume once more
        with pytest.raises(InterruptedError):
            with_all_switches(folder, [], stop)
    return whole, with_all_switches(folder, [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_and_resumes_leave_the_numbers_with_every_switch_on(folder: str) -> None:
    undisturbed, resumed = run_ranks(2, resumed_with_all_switches, 240, args=(folder,))[0]
    history = json.loads(undisturbed[0])
    assert all(0 < entry["train"]["skipped_steps"] < 6 for entry in history), history
    # Of 11 batches, two a step: between two steps.
    assert [[point["step"] for point in entry["validations"]] for entry in history] == [[4, 6, 10]] * 3
    rhos = [entry[part]["metrics"]["rho"] for entry in history for part in ("train", "validation")]
    assert len(set(rhos)) == 6 and all(-1 < rho < 1 for rho in rhos)
    assert json.loads(resumed[0]) == history and resumed[1] == undisturbed[1]
    kills = [(1, 3, True), (1, 2, False), (1, 9, True), (0, 26, True)]  # the second in a validation within an epoch
    terms = Terms(2, 2, replace=True, reset_limit=5)
    options = JobOptions(args=(folder, kills), kwargs={"run_id": "killed"})
    results = run_elastic_local(with_all_switches, terms, options)
    assert [Path(folder, f"killed-{number}").exists() for number in range(4)] == [True] * 4
    assert json.loads(results[0][0]) == history and results[0][1] == undisturbed[1]


@pytest.mark.slow
def test_a_loss_after_a_resume_repeats_no_epoch(folder: str) -> None:
    undisturbed = run_ranks(2, in_ranks, 120, args=(folder,))[0]
    terms = Terms(2, 2, replace=True, reset_limit=4)
    run_elastic_local(numbers, terms, JobOptions(args=(folder, []), kwargs={"epochs": 1}))
    results = run_elastic_local(numbers, terms, JobOptions(args=(folder, [(1, 4, True)])))
    assert Path(folder, "killed-0").exists()
    assert json.loads(results[0][0]) == json.loads(undisturbed[0])
    assert results[0][1] == undisturbed[1]


@pytest.mark.slow
def test_more_losses_than_allowed_end_the_job(folder: str) -> None:
    kills = [(1, 3, True), (0, 5, True)]
    with pytest.raises(WorkerFailedError, match="was killed by signal 9"):
        run_elastic_local(
            lambda: trained(folder, loss=Killing(folder, kills)), Terms(2, 2, replace=True, reset_limit=1)
        )


class Recording(Killing):
    """Writes the labels of each batch whose step was taken to a file of its process; the loss is their mean."""

    def __init__(self, folder: str, kills: list[tuple[int, int, bool]]) -> None:
        super().__init__(folder, kills)
        self._batch: tuple[str, list[float]] = ("", [])

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self._batch = (round_id(), label.reshape(-1).tolist())
        return super().forward(output, label) * 0 + label.mean()

    def begins(self) -> None:
        """Kills the process of the first round whose rank is to be lost at call 0, before it connects to others."""
        present, marker = rendezvous.find_current(), Path(self._folder, "killed-0")
        assert present is not None
        if self._kills[0][:2] == (present.rank, 0) and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def step_taken(self) -> None:
        """A commit. A batch of an earlier round was interrupted, or was counted before."""
        of_round, labels = self._batch
        if of_round == round_id():
            with Path(self._folder, f"labels-{os.getpid()}").open("a") as file:
                file.write(json.dumps(labels) + "\n")
        self._batch = ("", [])


def round_id() -> str:
    present = rendezvous.find_current()
    assert present is not None
    return present.job_id


def recorded(folder: str, kills: list[tuple[int, int, bool]], step_seconds: float = 0, **changed: Any) -> Any:
    import spark_estimator.torch as hvd
    from spark_estimator.estimators.torch import recovery

    loss, commit = Recording(folder, kills), recovery.Commits.step
    loss.begins()

    def step(self: Any, done: int) -> None:
        loss.step_taken()
        with Path(folder, f"rates-{os.getpid()}").open("a") as file:
            rate, epoch = self._state.optimizer.param_groups[0]["lr"], len(self._state.epochs.history)
            file.write(json.dumps([rate, hvd.size(), epoch]) + "\n")
        time.sleep(step_seconds)
        commit(self, done)

    recovery.Commits.step = step  # type: ignore[method-assign]  # in this rank's process
    result = trained(folder, loss=loss, backward_passes_per_step=1, **changed)
    return None if result is None else result.history


def labels_of_steps(folder: str) -> Counter[float]:
    """How often a step was taken with each label."""
    return Counter(
        label
        for file in Path(folder).glob("labels-*")
        for line in file.read_text().splitlines()
        for label in json.loads(line)
    )


def check_rates(folder: str, sizes: set[int]) -> None:
    """Each step has the rate of its epoch times the number of its ranks, which were `sizes`."""
    files = Path(folder).glob("rates-*")
    steps = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {size for _, size, _ in steps} == sizes and {epoch for *_, epoch in steps} == {0, 1}
    for rate, size, epoch in steps:
        assert rate == pytest.approx(0.01 * 0.7**epoch * size), (rate, size, epoch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "held_share", "how"),
    [
        ([(1, 4, True)], 0.0, ""),
        ([(0, 9, True)], 0.25, ""),
        ([(2, 1, False)], 0.25, ""),
        ([(0, 3, True), (0, 6, True)], 0.0, ""),
        ([(0, 3, True), (0, 6, True)], 0.25, ""),
        ([(0, 3, True), (0, 6, True)], 0.25, "limits"),
        ([(1, 4, True)], 0.25, "function"),
    ],
)
def test_without_a_replacement_the_others_have_the_rest_of_the_epoch(
    kills: list[tuple[int, int, bool]], held_share: float, how: str, folder: str
) -> None:
    terms = Terms(3, 1, reset_limit=4, patience=timedelta(0))
    changed = {"epochs": 2, "held_share": held_share, **find_parts(folder, how)}
    results = run_elastic_local(recorded, terms, JobOptions(args=(folder, kills), kwargs=changed))
    assert len(results) == 3 - len(kills) == 3 - len(list(Path(folder).glob("killed-*")))
    labels = labels_of_steps(folder)
    assert set(labels.values()) == {2}, "two epochs"
    assert len(labels) == ROWS - round(ROWS * held_share)
    check_rates(folder, set(range(3 - len(kills), 4)))
    mean = sum(labels) / len(labels)
    assert [entry["train"]["loss"] for entry in results[0]] == pytest.approx([mean, mean])


@pytest.mark.slow
@pytest.mark.parametrize("call", [9, 0], ids=["within the epoch", "before the first round"])
def test_a_process_that_comes_later_has_its_part_of_the_epoch(call: int, folder: str) -> None:
    terms = Terms(3, 1, replace=True, reset_limit=4, patience=timedelta(0))
    changed = {"epochs": 2, "held_share": 0.25, "batch_size": 4, "step_seconds": 0.6}  # the process needs some time
    results = run_elastic_local(recorded, terms, JobOptions(args=(folder, [(0, call, True)]), kwargs=changed))
    assert len(results) == 3, "it has grown again"
    labels = labels_of_steps(folder)
    assert set(labels.values()) == {2} and len(labels) == ROWS - round(ROWS * 0.25)
    check_rates(folder, {2, 3})
    mean = sum(labels) / len(labels)
    assert [entry["train"]["loss"] for entry in results[0]] == pytest.approx([mean, mean])


def growing_at_an_epochs_end(folder: str, kills: list[tuple[int, int, bool]]) -> Any:
    """The new process is let in by the commit after the first epoch, and by no other."""
    import spark_estimator.torch as hvd
    from spark_estimator.collectives import launcher_link
    from spark_estimator.elastic.state import HostUpdateResult
    from spark_estimator.estimators.torch import recovery

    check, end = recovery.RecoverableState.check_host_updates, recovery.Commits.end_epoch

    def epoch(self: Any, *arguments: Any, **keywords: Any) -> None:
        link = launcher_link.link()
        while hvd.size() == 2:
            if link is not None and link.take_announcement():  # which tells it once
                self._state.on_hosts_updated(0.0, HostUpdateResult.added)
                break
            time.sleep(0.05)
        recovery.RecoverableState.check_host_updates = check  # type: ignore[method-assign]
        end(self, *arguments, **keywords)

    recovery.Commits.end_epoch = epoch  # type: ignore[method-assign]
    recovery.RecoverableState.check_host_updates = lambda self: None  # type: ignore[method-assign]
    return recorded(folder, kills, epochs=2)


@pytest.mark.slow
def test_an_epoch_at_whose_end_the_job_grows_is_reported(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    terms = Terms(3, 1, replace=True, reset_limit=4, patience=timedelta(0))
    results = run_elastic_local(growing_at_an_epochs_end, terms, JobOptions(args=(folder, [(1, 9, True)])))
    assert len(results) == 3
    assert re.findall(r"epoch \d/2, train loss", capfd.readouterr().out) == [
        "epoch 1/2, train loss",
        "epoch 2/2, train loss",
    ]


def test_a_commit_copies_nothing_that_never_changes() -> None:
    epochs, begun = EndedEpochs(({"epoch": 0},), {"weight": torch.ones(2)}), BegunRun(KnownRun({}, 1), frozenset(), 2)
    assert copy.deepcopy((epochs, begun))[0] is epochs and copy.deepcopy((epochs, begun))[1] is begun
