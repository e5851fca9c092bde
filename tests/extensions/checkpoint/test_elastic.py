"""Checkpoints in an elastic job: the steps count on after a loss, and the newest checkpoint is the last copy."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from spark_estimator.checkpoint import Checkpointer, complete_steps, load
from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.ranks import RanksFailedError, run_ranks

STEPS, LOST_AT, EVERY = 12, 7, 2


def train(
    folder: str, mode: str, steps: int = STEPS, step_seconds: float = 0, every: int = EVERY
) -> list[tuple[int, int]]:
    """Returns (what `restore` returned, the state's step then) of each round."""
    import spark_estimator.torch as hvd

    hvd.init()
    marker = Path(folder, "killed")
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Average)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    begun = []

    @hvd.elastic.run(mode=mode)
    def loop(state: hvd.elastic.TorchState) -> list[tuple[int, int]]:
        with Checkpointer(f"{folder}/checkpoints", **state.checkpoint_parts(), every_steps=every) as checkpointer:
            begun.append((checkpointer.restore(), state.step))
            while state.step < steps:
                if (state.step, hvd.rank()) == (LOST_AT, 1) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(step_seconds)
                optimizer.zero_grad()
                model.weight.sum().backward()
                optimizer.step()
                state.step += 1
                state.commit()
                checkpointer.step()
        return begun

    result: list[tuple[int, int]] = loop(state)
    return result


@pytest.mark.parametrize("mode", ["step", "commit"])
def test_a_loss_counts_no_step_twice(mode: str, tmp_path: Path) -> None:
    terms = Terms(2, 1, timeout=timedelta(seconds=20))
    begun = run_elastic_local(train, terms, JobOptions(args=(str(tmp_path), mode)))[0]
    assert begun == [(0, 0), (LOST_AT, LOST_AT)], "the second round keeps the state that the ranks have"
    checkpoints = str(tmp_path / "checkpoints")
    assert complete_steps(checkpoints)[-1] == STEPS
    saved = load(checkpoints)
    assert saved["state"]["step"] == saved["step"] == STEPS
    assert saved["model"]["weight"].tolist() == [[-float(STEPS)] * 3]


def test_a_loss_delays_no_checkpoint(tmp_path: Path) -> None:
    options = JobOptions(args=(str(tmp_path), "step"), kwargs={"every": 10, "steps": 11})
    run_elastic_local(train, Terms(2, 1, timeout=timedelta(seconds=20)), options)
    assert complete_steps(str(tmp_path / "checkpoints")) == [10], "7 steps before the loss, and 3 after it"


@pytest.mark.slow
def test_a_step_after_which_a_rank_joins_is_counted(tmp_path: Path) -> None:
    """Its commit interrupts the loop before the checkpointer's step()."""
    terms = Terms(2, 1, replace=True, timeout=timedelta(seconds=20))
    options = JobOptions(args=(str(tmp_path), "step"), kwargs={"steps": 61, "step_seconds": 0.4})
    begun = run_elastic_local(train, terms, options)[0]
    assert len(begun) == 3 and all(steps == state for steps, state in begun), "lost, and joined"
    saved = load(str(tmp_path / "checkpoints"))
    assert saved["step"] == saved["state"]["step"] > begun[-1][0]


def test_a_training_that_does_not_restore_leaves_its_own_checkpoints(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    for value, steps in ((1.0, 30), (2.0, 3)):
        torch.nn.init.constant_(model.weight, value)
        with Checkpointer(str(tmp_path), model=model, every_steps=1) as checkpointer:
            for _ in range(steps):
                checkpointer.step()
                checkpointer.wait()
    assert complete_steps(str(tmp_path)) == [2, 3]
    assert load(str(tmp_path))["model"]["weight"].item() == 2.0


def test_a_model_with_the_name_of_the_attributes_is_refused() -> None:
    def parts(_rank: int) -> None:
        import spark_estimator.torch as hvd

        hvd.init()
        hvd.elastic.TorchState(state=torch.nn.Linear(1, 1)).checkpoint_parts()

    with pytest.raises(RanksFailedError, match="the name 'state' is that of the plain attributes"):
        run_ranks(1, parts)
