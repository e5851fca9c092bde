"""kill -9 of ranks and writers at random moments: the last complete checkpoint loads; the end has the same bits."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator.checkpoint import complete_steps, load
from tests.ranks import start_ranks

STEPS = 24


def train(rank: int, folder: str, pause: float) -> dict[str, Any]:
    """Trains to the end from the last checkpoint; a line reports which process writes."""
    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(30, 600), torch.nn.BatchNorm1d(600), torch.nn.Dropout(0.5), torch.nn.Linear(600, 600)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    with Checkpointer(folder, model=model, optimizer=optimizer, every_steps=3, overlap=True) as checkpointer:
        first = checkpointer.restore()
        print(json.dumps({"first": first, "writer": checkpointer.writer_pid}), flush=True)
        for _ in range(first, STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 30)).square().mean().backward()
            optimizer.step()
            time.sleep(pause)
            checkpointer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def killed(folder: Path, chance: random.Random, victim: str) -> list[dict[str, Any]] | None:
    """A run in which one process is killed. Returns the models' numbers if it completed nevertheless."""
    with start_ranks(2, train, args=(str(folder), 0.01)) as ranks:
        rank = chance.randrange(2)
        ranks.await_output(rank, '"writer"')
        line = next(line for line in ranks.output(rank).splitlines() if '"writer"' in line)
        time.sleep(chance.uniform(0, 0.6))
        # Either may have ended already.
        if victim == "writer":
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(line)["writer"], signal.SIGKILL)
        else:
            ranks.kill(rank)
        outcomes = ranks.wait(60)
    return [outcome.value for outcome in outcomes] if all(outcome.returned for outcome in outcomes) else None


def kill_and_compare(folder: Path, victims: list[str], seed: int) -> None:
    chance = random.Random(seed)
    with start_ranks(2, train, args=(str(folder / "undisturbed"), 0)) as ranks:
        expected = [outcome.value for outcome in ranks.wait(60)]
    result = None
    for victim in victims:
        result = killed(folder / "disturbed", chance, victim)
        steps = complete_steps(str(folder / "disturbed"))
        if steps:
            state = load(str(folder / "disturbed"))
            assert state["step"] >= steps[-1]  # a writer that was left alone may have completed another one
            assert torch.isfinite(state["model"]["0.weight"]).all()
        assert victim == "rank" or result is not None  # no rank is lost by its writer's death
    with start_ranks(2, train, args=(str(folder / "disturbed"), 0)) as ranks:
        result = [outcome.value for outcome in ranks.wait(60)]
    for numbers, other in zip(expected, result, strict=True):
        assert all(torch.equal(numbers[name], other[name]) for name in numbers), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kills_cost_no_bit(tmp_path: Path) -> None:
    kill_and_compare(tmp_path, ["rank", "writer"], seed=7)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_cost_no_bit(tmp_path: Path) -> None:
    for seed in range(5):
        kill_and_compare(tmp_path / str(seed), ["rank", "rank", "rank", "writer"], seed=seed)
