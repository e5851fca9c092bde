"""What each rank of a `Launcher.RECOVERY` run calls: a training that loses a step at most, with checkpoints beside it.

All gradients are whole numbers, so that the parameters are exact in any order and for any number of ranks.
"""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy

from chaos.faults import Faults
from chaos.plan import Run
from chaos.program import WrongNumbersError, table_of

#: The folder of the checkpoints, in the run's.
CHECKPOINTS = "checkpoints"


def expected(run: Run) -> int:
    """The result of a run, computed by one process without collectives."""
    return _result_of(_weights(run, run.steps))


def train(text: str, folder: str) -> int:
    """The function of every rank.

    Args:
        text: the run, as JSON.
        folder: of the run.

    Raises:
        WrongNumbersError: this process has computed more steps twice than rounds have ended.
    """
    import torch

    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer

    run = Run.from_json(text)
    faults = Faults(run, Path(folder))
    faults.before_init()
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Linear(run.width, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Sum)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
    rounds, computed, first = 0, 0, -1

    @hvd.elastic.run(mode="step")
    def loop(state: Any) -> None:
        nonlocal rounds, computed, first
        rounds += 1
        first = state.step if first < 0 else first
        faults.identify(hvd.rank(), hvd.size())
        with Checkpointer(f"{folder}/{CHECKPOINTS}", **state.checkpoint_parts(), every_steps=2) as checkpointer:
            while state.step < run.steps:
                faults.at(state.step)
                time.sleep(run.pace / 1000)
                part = numpy.array_split(table_of(run, state.step), hvd.size())[hvd.rank()]
                optimizer.zero_grad()
                (model.weight * torch.from_numpy(part.sum(axis=0))).sum().backward()
                optimizer.step()
                computed += 1
                state.step += 1
                state.commit()
                checkpointer.step()
            faults.at(run.steps)
            checkpointer.save()

    loop(state)
    if computed > run.steps - first + rounds - 1:
        raise WrongNumbersError(f"{computed} steps of {run.steps} from step {first} on, in {rounds} rounds")
    hvd.shutdown()
    return _result_of(model.weight.detach().numpy().reshape(-1))


def problem_of_checkpoints(run: Run, folder: Path, *, succeeded: bool) -> str:
    """What is wrong with the checkpoints of a run; '' for nothing.

    Args:
        succeeded: the last step's has to be there.
    """
    from spark_estimator.checkpoint import complete_steps, load

    root = str(folder / CHECKPOINTS)
    if not os.path.isdir(root):
        return f"no folder {root}" if succeeded else ""
    steps = complete_steps(root)
    for step in steps:
        saved = load(root, step)
        done = saved["state"]["step"]
        if not numpy.array_equal(saved["model"]["weight"].numpy().reshape(-1), _weights(run, done)):
            return f"the checkpoint of step {step} has other numbers than those of {done} steps"
    if succeeded and (not steps or load(root)["state"]["step"] != run.steps):
        return f"complete are those of steps {steps}, and the training had {run.steps}"
    return ""


def _weights(run: Run, steps: int) -> Any:
    """The parameters after some steps."""
    return -sum((table_of(run, step).sum(axis=0) for step in range(steps)), numpy.zeros(run.width, numpy.float32))


def _result_of(weights: Any) -> int:
    return zlib.crc32(numpy.ascontiguousarray(weights + 0.0, dtype=numpy.float32).tobytes())  # + 0.0: no negative zero
