"""What chaos finds in the checkpoints of a training that recovers within a step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chaos import recovery
from chaos.plan import Launcher, Run
from chaos.program import table_of
from spark_estimator.checkpoint import Checkpointer
from tests.ranks import run_ranks

RUN = Run("seed", 3, Launcher.RECOVERY, 2, False, True, (("allreduce",),) * 4, 17, 0, ())


def test_two_ranks_come_to_what_one_process_computes(tmp_path: Path) -> None:
    def train(_rank: int, text: str, folder: str) -> int:
        return recovery.train(text, folder)

    assert run_ranks(2, train, args=(RUN.to_json(), str(tmp_path))) == [recovery.expected(RUN)] * 2
    assert recovery.problem_of_checkpoints(RUN, tmp_path, succeeded=True) == ""


class Counter:
    """The object `state` of a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


@pytest.mark.parametrize(
    ("steps", "error", "problem"),
    [
        (4, 0.0, ""),
        (4, 1.0, "the checkpoint of step 1 has other numbers than those of 4 steps"),
        (3, 0.0, "complete are those of steps [1], and the training had 4"),
    ],
)
def test_wrong_and_missing_checkpoints_are_noticed(steps: int, error: float, problem: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(RUN.width, 1, bias=False)
    weights = -sum(torch.from_numpy(table_of(RUN, step).sum(axis=0)) for step in range(steps))
    torch.nn.init.constant_(model.weight, error)
    model.weight.data += weights
    with Checkpointer(
        str(tmp_path / recovery.CHECKPOINTS), model=model, state=Counter(steps), every_steps=1
    ) as checkpointer:
        checkpointer.step()
    assert recovery.problem_of_checkpoints(RUN, tmp_path, succeeded=True) == problem
    if steps < RUN.steps:
        assert recovery.problem_of_checkpoints(RUN, tmp_path, succeeded=False) == ""
