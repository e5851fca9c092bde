"""Recovery within a step: what a rank keeps, and a training with kills beside an undisturbed one, bit for bit."""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator.elastic import ObjectState, run_fn
from spark_estimator.torch.elastic import steps
from spark_estimator.torch.elastic.state import TorchState
from spark_estimator.torch.elastic.steps import StepKeeper, pack, unpack
from tests.elastic.horovodrun import horovodrun


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="mode must be 'commit' or 'step'; got 'epoch'"):
        run_fn(lambda state: None, lambda: None, "epoch")
    with pytest.raises(TypeError, match='ObjectState does not support mode="step"'):
        run_fn(lambda state: None, lambda: None, "step")(ObjectState(lambda value: value, lambda: 0))
    nets = [nn.Linear(1, 1), nn.Linear(1, 1)]
    optimizers = [torch.optim.SGD(net.parameters()) for net in nets]
    state = TorchState(nets[0], optimizers[0], other=optimizers[1])
    with pytest.raises(ValueError, match=r"needs a state with one optimizer.* has 2"):
        state.keep_steps()


def test_what_a_rank_alone_has_comes_back() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    net.register_buffer("eighth", torch.tensor(0.5, dtype=torch.bfloat16))
    keeper = StepKeeper([net])
    random.gauss(0, 1)  # leaves a second number for the next call
    numpy.random.normal()
    net(torch.randn(8, 3))
    content = keeper._pack()

    def drawn() -> list[float]:
        return [random.gauss(0, 1), numpy.random.normal(), torch.randn(1).item(), *net[0].running_mean.tolist()]

    expected = drawn()
    net(torch.randn(8, 3))
    net.eighth.fill_(2)  # type: ignore[operator]
    keeper._unpack(content)
    assert drawn() == expected and net.eighth == 0.5


def test_the_largest_buffers_are_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(steps, "_MOST_BUFFER_BYTES", 100)
    model, sums = nn.Module(), nn.Module()
    model.register_buffer("table", torch.zeros(25))
    model.register_buffer("mean", torch.ones(2))
    sums.register_buffer("sums", torch.full((3,), 2.0))
    keeper = StepKeeper([model, sums])
    assert [buffer.tolist() for buffer in keeper._list_buffers()] == [[1.0] * 2, [2.0] * 3]
    assert [buffer.numel() for buffer in StepKeeper([sums])._list_buffers()] == [3]
    assert "1 buffers of the model, of 100 bytes, are not kept for other ranks" in caplog.text


def test_a_copy_that_is_not_whole_is_refused() -> None:
    parts = [b"", b"abc", b"x"]
    assert unpack(pack(parts)) == parts and unpack(pack([])) == []
    for content in (b"", pack(parts)[:-1], pack(parts) + b"y", struct.pack("<q", -1), struct.pack("<qq", 1, -1)):
        with pytest.raises(ValueError, match="are no copy of a rank's state"):
            unpack(content)


TRAINING = """
import json, os, random, signal, sys, threading, time
import numpy, torch
import spark_estimator.torch as hvd

hvd.init()
folder, plan = sys.argv[1], json.loads(sys.argv[2])
torch.manual_seed(1000 + hvd.rank())
random.seed(hvd.rank())
numpy.random.seed(hvd.rank())
model = torch.nn.Sequential(
    torch.nn.Linear(6, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
inputs = torch.randn(240, 6, generator=torch.Generator().manual_seed(3))
targets = inputs.sum(dim=1, keepdim=True)
sampler = hvd.elastic.ElasticSampler(inputs, seed=1)
loader = torch.utils.data.DataLoader(range(240), batch_size=4, sampler=sampler, generator=torch.Generator())
state = hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, epoch=0, batch=0, redone=0)
executed = 0


def killed():
    while True:
        for number, (rank, step, delay) in enumerate(plan):
            if hvd.is_initialized() and hvd.rank() == rank and state.batch >= step:
                try:
                    open(f"{folder}/kill{number}", "x").close()
                except FileExistsError:
                    continue
                time.sleep(delay)
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.0005)


if plan:
    threading.Thread(target=killed, daemon=True).start()


@hvd.elastic.run(mode="step")
def train(state):
    global executed
    while state.epoch < 3:
        for number, indices in enumerate(loader):
            executed += 1
            noise = torch.full((1,), random.random() + numpy.random.random()) + torch.randn(1)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[indices] + 0.01 * noise), targets[indices])
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, len(indices))
            state.batch += 1
            state.commit()
        state.epoch += 1
        schedule.step()
        sampler.set_epoch(state.epoch)


train(state)
drawn = torch.tensor([random.random(), numpy.random.random()], dtype=torch.float64)
tensors = {**model.state_dict(), "rng": torch.get_rng_state(), "drawn": drawn}
moments = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
tensors |= {f"moment{number}": value for number, value in enumerate(moments)}
torch.save({"tensors": tensors, "batch": state.batch, "executed": executed}, f"{folder}/end{hvd.rank()}")
"""


def trained(folder: Path, plan: list[tuple[int, int, float]]) -> list[Any]:
    """What each of three ranks ends with."""
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    command = [sys.executable, str(folder / "train.py"), str(folder), json.dumps(plan)]
    done = horovodrun("-np", "3", "--min-np", "3", "--max-np", "3", *command, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(folder.glob("kill*"))) == len(plan) and done.stderr.count("lost rank") >= len(plan)
    return [torch.load(folder / f"end{rank}") for rank in range(3)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_training_with_kills_ends_as_one_without_bit_for_bit(tmp_path: Path) -> None:
    draw = random.Random(7)
    plan = [(draw.randrange(3), step, draw.random() * 0.01) for step in (5, 22, 41)]
    undisturbed, disturbed = trained(tmp_path / "undisturbed", []), trained(tmp_path / "disturbed", plan)
    for rank, (expected, result) in enumerate(zip(undisturbed, disturbed, strict=True)):
        assert result["batch"] == expected["batch"] == 60
        differing = [
            name for name, value in expected["tensors"].items() if not torch.equal(value, result["tensors"][name])
        ]
        assert not differing, f"rank {rank}"
        assert result["executed"] <= expected["executed"] + len(plan), "at most one step is repeated for each loss"
