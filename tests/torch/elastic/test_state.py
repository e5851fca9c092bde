"""TorchState and ElasticSampler: what is kept and restored, each rank's samples; a training that loses a rank."""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from spark_estimator.torch.elastic import state as elastic_state
from spark_estimator.torch.elastic.sampler import ElasticSampler
from spark_estimator.torch.elastic.state import StateHandler, TorchState, host_copy
from tests.elastic.horovodrun import horovodrun
from tests.torch.rank_pool import RankPool


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is a job of one."""
    hvd.init()
    yield
    hvd.shutdown()


def place(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setattr(context, "rank", lambda: rank)
    monkeypatch.setattr(context, "size", lambda: size)


# --- ElasticSampler ---------------------------------------------------------------------------------------------------


# --- TorchState -------------------------------------------------------------------------------------------------------


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for step in range(steps):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
}


def tensors_of(state: Any) -> list[torch.Tensor]:
    tensors = list(state.model.state_dict().values())
    for values in state.optimizer.state_dict()["state"].values():
        tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
    return [tensor.clone() for tensor in tensors]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_restore_is_exact_as_often_as_it_is_called(name: str, alone: None) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = OPTIMIZERS[name](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    state: Any = TorchState(model, optimizer, scheduler=scheduler, epoch=0)
    start = tensors_of(state)
    trained(model, optimizer)
    state.restore()
    assert same(tensors_of(state), start), "before any commit: as it was given"
    trained(model, optimizer)
    scheduler.step()
    state.epoch = 1
    state.commit()
    committed, rate = tensors_of(state), optimizer.param_groups[0]["lr"]
    reference = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
    for _ in range(2):
        trained(model, optimizer, 5)
        scheduler.step()
        state.epoch = 9
        state.restore()
        assert same(tensors_of(state), committed) and state.epoch == 1
        assert optimizer.param_groups[0]["lr"] == rate and scheduler.last_epoch == 1
        assert all(parameter.grad is None for parameter in model.parameters())
    # The following batches are the same as without the failure.
    other = OPTIMIZERS[name](reference[0].parameters())
    other.load_state_dict(reference[1])
    trained(model, optimizer)
    trained(reference[0], other)
    assert same(list(model.state_dict().values()), list(reference[0].state_dict().values()))


def test_attributes_are_handled_by_their_types_and_may_be_exchanged(alone: None) -> None:
    state: Any = TorchState(nn.Linear(2, 1), sampler=ElasticSampler(range(6)), losses=[1.0])
    assert state.optimizer is None
    other = nn.Linear(2, 1)
    weight = other.weight.detach().clone()
    state.model = other
    other.weight.data.zero_()
    state.sampler.record_batch(0, 2)
    state.losses.append(2.0)
    state.restore()
    assert torch.equal(other.weight, weight) and state.model is other
    assert state.sampler.processed_num == 0 and state.losses == [1.0]
    for name in ("commit", "sync", "_handlers"):
        with pytest.raises(ValueError, match=name):
            TorchState(**{name: nn.Linear(1, 1)})


def test_a_reset_shares_out_what_is_left(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = TorchState(sampler=ElasticSampler(range(10), shuffle=False))
    state.sampler.record_batch(0, 4)
    place(monkeypatch, 1, 2)
    state.on_reset()
    assert list(state.sampler) == [5, 7, 9]


def test_types_of_the_user_s_own_may_have_handlers(alone: None) -> None:
    class Meter:
        value = 0

    class MeterHandler(StateHandler):
        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.value.value = hvd.broadcast_object(self.value.value)

    before = elastic_state.get_handler_registry()
    elastic_state.set_handler_registry([(Meter, MeterHandler), *before])
    try:
        meter = Meter()
        state: Any = TorchState(meter=meter)
        meter.value = 5
        state.commit()
        meter.value = 6
        state.restore()
        assert meter.value == 5
    finally:
        elastic_state.set_handler_registry(before)


def test_copies_share_nothing() -> None:
    value = {"a": [torch.ones(2), (torch.zeros(1), {"b": [1]})], 3: "x"}
    copied = host_copy(value)
    value["a"][0].add_(1)
    value["a"][1][1]["b"].append(2)
    assert torch.equal(copied["a"][0], torch.ones(2)) and copied["a"][1][1] == {"b": [1]} and copied[3] == "x"


def test_all_ranks_take_over_rank_0_s_state(two_ranks: RankPool) -> None:
    def work(rank: int) -> Any:
        import torch

        import spark_estimator.torch as hvd

        torch.manual_seed(rank)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        state = hvd.elastic.TorchState(model, optimizer, sampler=hvd.elastic.ElasticSampler(range(20)), epoch=rank)
        if rank == 0:  # a survivor; the other has just joined
            optimizer.state[model.weight]["momentum_buffer"] = torch.full_like(model.weight, 3.0)
            state.sampler.epoch, state.sampler.processed_num = 2, 6
            state.epoch = 7
        state.sync()
        model.weight.data.zero_()
        state.epoch = 100
        state.restore()
        buffer = optimizer.state[model.weight].get("momentum_buffer")
        weight = model.weight.detach().tolist()
        return weight, buffer.tolist(), optimizer.param_groups[0]["lr"], state.epoch, state.sampler.state_dict()

    first, second = two_ranks.run(work)
    assert first == second and first[1:] == ([[3.0] * 4], 0.1, 7, {"epoch": 2, "processed_num": 6})


def test_old_names_lead_here() -> None:
    from spark_estimator import compat

    compat.install()
    try:
        import horovod.common.elastic
        import horovod.common.exceptions
        import horovod.torch.elastic.sampler
        import horovod.torch.elastic.state

        assert horovod.torch.elastic.TorchState is TorchState is horovod.torch.elastic.state.TorchState
        assert horovod.torch.elastic.sampler.ElasticSampler is ElasticSampler
        assert horovod.torch.elastic.run is hvd.elastic.run
        assert issubclass(TorchState, horovod.common.elastic.ObjectState)
        assert horovod.common.exceptions.HostsUpdatedInterrupt(True).skip_sync
    finally:
        compat.uninstall()


# --- The whole --------------------------------------------------------------------------------------------------------

TRAINING = """
import os, signal, sys
import torch
import horovod.torch as hvd

hvd.init()
folder, dies = sys.argv[1], int(sys.argv[2])
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
inputs = torch.randn(90, 6, generator=torch.Generator().manual_seed(3))
targets = inputs.sum(dim=1, keepdim=True)
sampler = hvd.elastic.ElasticSampler(inputs, seed=1)
loader = torch.utils.data.DataLoader(range(90), batch_size=5, sampler=sampler)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, seen=[])
if os.path.exists(f"{folder}/start"):  # a run without failure, from that commit
    saved = torch.load(f"{folder}/start")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sampler.load_state_dict(saved["sampler"])
    state.epoch, state.seen = saved["epoch"], saved["seen"]
    optimizer.param_groups[0]["lr"] = 0.01 * hvd.size()


def rescale():
    optimizer.param_groups[0]["lr"] = 0.01 * hvd.size()
    print("rescaled to", optimizer.param_groups[0]["lr"])


@hvd.elastic.run
def train(state):
    while state.epoch < 2:
        for number, indices in enumerate(loader):
            if dies >= 0 and hvd.rank() == dies and hvd.size() == 3 and state.epoch == 1 and len(state.seen) == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs[indices]), targets[indices]).backward()
            optimizer.step()
            state.seen.append((state.epoch, sorted(sum(hvd.allgather_object(indices.tolist()), []))))
            sampler.record_batch(number, len(indices))
            state.commit()
            if hvd.size() == 3 and state.epoch == 1 and len(state.seen) == 9:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1,
                            "sampler": sampler.state_dict(), "seen": state.seen}, f"{folder}/commit{hvd.rank()}")
        state.epoch += 1
        sampler.set_epoch(state.epoch)


state.register_reset_callbacks([rescale])
train(state)
torch.save({"model": model.state_dict(), "seen": state.seen, "size": hvd.size()}, f"{folder}/end{hvd.rank()}")
"""


def ends(folder: Path, size: int) -> list[Any]:
    return [torch.load(folder / f"end{rank}") for rank in range(size)]


def test_a_training_that_loses_a_rank_ends_as_one_from_that_commit_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    command = [sys.executable, str(script), str(tmp_path)]
    done = horovodrun("-np", "3", "--min-np", "2", *command, "0")
    assert done.returncode == 0, done.stderr
    assert "lost rank 0 (host " in done.stderr
    for rank in range(2):
        assert f"[{rank}]<stdout>:rescaled to 0.02" in done.stdout
    lossy = ends(tmp_path, 2)
    # Each epoch has every sample once, but for what fills up its last round, though a rank was lost in the middle.
    for epoch in range(2):
        seen = Counter(index for number, indices in lossy[0]["seen"] if number == epoch for index in indices)
        assert set(seen) == set(range(90)) and seen.total() - 90 < 2
    assert lossy[0]["seen"] == lossy[1]["seen"] and lossy[0]["size"] == 2
    (tmp_path / "commit1").rename(tmp_path / "start")
    done = horovodrun("-np", "2", *command, "-1")
    assert done.returncode == 0, done.stderr
    undisturbed = ends(tmp_path, 2)
    for history in (*lossy[1:], *undisturbed):
        assert same(list(history["model"].values()), list(lossy[0]["model"].values()))
    assert undisturbed[0]["seen"] == lossy[0]["seen"]


@pytest.mark.slow
def test_ranks_that_step_by_themselves_lose_nothing_with_another(tmp_path: Path) -> None:
    """One of three is killed between two exchanges: the others continue at their step."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, torch\nimport spark_estimator.torch as hvd\nhvd.init()\n"
        "torch.manual_seed(hvd.rank())\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.05), inner_steps=8)\n"
        "dies = hvd.rank() == 1\n"
        "steps = []\n"
        "@hvd.elastic.run\n"
        "def train(state):\n"
        "    while state.step < 40:\n"
        "        if dies and state.step == 20:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        inputs = torch.randn(16, 4)\n"
        "        optimizer.zero_grad()\n"
        "        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()\n"
        "        state.step += 1\n"
        "        steps.append(state.step)\n"
        "        optimizer.step()\n"
        "    optimizer.synchronize()\n"
        "train(hvd.elastic.TorchState(model, optimizer, step=0))\n"
        "print('weights', model.weight.tolist(), 'steps', steps == list(range(1, 41)), optimizer.outer_steps)\n"
    )
    done = horovodrun("-np", "3", "--min-np", "2", sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    ends = re.findall(r"weights (.*)", done.stdout)
    assert len(ends) == 2 and ends[0] == ends[1] and "steps True 4" in ends[0], done.stdout


@pytest.mark.slow
def test_optimizers_are_numbered_alike_by_a_survivor_and_by_one_that_has_come(tmp_path: Path) -> None:
    """One of two dies; the other continues alone until a new one has joined, which makes its two optimizers again."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys, time, torch\nimport spark_estimator.torch as hvd\nhvd.init()\n"
        "models = [torch.nn.Linear(2, 1), torch.nn.Linear(3, 1)]\n"
        "optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]\n"
        "alone = hvd.size() == 2 and not os.path.exists(sys.argv[1])\n"
        "@hvd.elastic.run\n"
        "def train(state):\n"
        "    while state.together < 3:\n"
        "        if alone and hvd.rank() == 0 and hvd.size() == 2 and state.step == 2:\n"
        "            open(sys.argv[1], 'w').close()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        for model, optimizer in zip(models[::-1], optimizers[::-1]):\n"  # used in another order than made
        "            optimizer.zero_grad()\n"
        "            model(torch.randn(4, model.in_features)).square().mean().backward()\n"
        "            optimizer.step()\n"
        "        state.step += 1\n"
        "        state.together += hvd.size() == 2 and state.step > 2\n"
        "        time.sleep(0.01)\n"
        "        state.commit()\n"
        "more = {'other': models[1], 'second': optimizers[1]}\n"
        "train(hvd.elastic.TorchState(models[0], optimizers[0], step=0, together=0, **more))\n"
        "print('weights', [model.weight.tolist() for model in models])\n"
    )
    done = horovodrun(
        "-np", "2", "--min-np", "1", "--max-np", "2", sys.executable, str(script), str(tmp_path / "struck")
    )
    assert done.returncode == 0, done.stderr
    weights = re.findall(r"weights (.*)", done.stdout)
    assert len(weights) == 2 and weights[0] == weights[1]
    assert "round 3 starts with 2 ranks" in done.stderr


def test_a_process_of_a_job_of_one_goes_through_too(alone: None) -> None:
    @hvd.elastic.run
    def train(state: Any, more: int) -> int:
        state.step += more
        state.commit()
        return int(state.step)

    assert train(TorchState(step=1), more=2) == 3


@pytest.mark.parametrize("failing", [(1,), (0, 1)])
def test_ranks_of_a_fixed_job_join_again_after_a_failure(two_ranks: RankPool, failing: tuple[int, ...]) -> None:
    def check(rank: int) -> tuple[int, float]:
        net = nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
        state = TorchState(model=net, optimizer=optimizer, batch=0)
        failures = [hvd.HorovodInternalError("once")] if rank in failing else []

        @hvd.elastic.run
        def train(state: Any) -> int:
            while state.batch < 4:
                optimizer.zero_grad()
                net(torch.full((1, 2), 1.0 + rank)).sum().backward()
                optimizer.step()
                if state.batch == 1 and failures:  # the step is made, and not committed
                    raise failures.pop()
                state.batch += 1
                state.commit()
            return hvd.size()

        return train(state), sum(parameter.sum().item() for parameter in net.parameters())

    torch.manual_seed(1)  # as the ranks
    begin = sum(parameter.sum().item() for parameter in nn.Linear(2, 1).parameters())
    # Each step subtracts 0.1 times the mean gradient, 1.5 for each of two weights and 1 for the offset.
    assert two_ranks.run(check) == [(2, pytest.approx(begin - 4 * 0.1 * 4.0, abs=1e-5))] * 2
