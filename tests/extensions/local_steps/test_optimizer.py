"""`DiLoCo` and `LocalSGD` on real ranks, beside the same computed by one process."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.support.by_sockets import by_sockets
from tests.torch.rank_pool import RankPool
from tests.torch.training import assert_same_on_all_ranks, batches, model_of, own_rows


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


class Simulated:
    """All ranks in one process: models, their optimizers, and the outer step as the papers have it."""

    def __init__(self, ranks: int, lr: float, momentum: float, mixing: float) -> None:
        self.models = [model_of() for _ in range(ranks)]
        self.optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in self.models]
        self.params = [list(model.parameters()) for model in self.models]
        self.anchors = [param.detach().clone() for param in self.params[0]]
        self.momenta = [torch.zeros_like(anchor) for anchor in self.anchors]
        self.lr, self.momentum, self.mixing = lr, momentum, mixing
        self.sent: dict[int, torch.Tensor] = {}

    def step(self, step: int) -> None:
        inputs, targets = batches(step + 1, len(self.models))[step]
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            rows = slice(rank * 4, rank * 4 + 4)
            step_on(model, optimizer, inputs[rows], targets[rows])

    def send(self, positions: list[int]) -> None:
        for position in positions:
            of_ranks = [self.anchors[position] - params[position].detach() for params in self.params]
            self.sent[position] = sum(of_ranks) / len(of_ranks)  # type: ignore[assignment]

    def take(self, positions: list[int], late: bool) -> None:
        for position in positions:
            gradient = self.sent.pop(position)
            self.momenta[position] = self.momentum * self.momenta[position] + gradient
            self.anchors[position] -= self.lr * (gradient + self.momentum * self.momenta[position])
            keep = self.mixing if late else 0.0
            for params in self.params:
                params[position].data = keep * params[position].data + (1 - keep) * self.anchors[position]


def compare(model: nn.Module, expected: nn.Module) -> None:
    for param, reference in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(param, reference, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ["diloco", "local_sgd"])
def test_rounds_are_those_of_one_process(two_ranks: RankPool, kind: str) -> None:
    def check(rank: int) -> None:
        model = model_of(seed=7 + rank)  # rank 0's are what all begin with
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        if kind == "diloco":
            optimizer = hvd.DiLoCo(inner, model.named_parameters(), inner_steps=3, outer_lr=0.6, outer_momentum=0.8)
            simulated = Simulated(2, 0.6, 0.8, 0.5)
        else:
            optimizer = hvd.LocalSGD(inner, model.named_parameters(), inner_steps=3)
            simulated = Simulated(2, 1.0, 0.0, 0.0)
        assert optimizer is inner and type(optimizer).__name__ == "Adam"
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        everything = list(range(len(simulated.anchors)))
        for step in range(8):
            inputs, targets = batches(step + 1)[step]
            step_on(model, optimizer, own_rows(inputs), own_rows(targets))
            simulated.step(step)
            if step % 3 == 2:
                simulated.send(everything)
                simulated.take(everything, late=False)
                assert_same_on_all_ranks(model)
            compare(model, simulated.models[rank])
        optimizer.synchronize()  # type: ignore[attr-defined]
        assert_same_on_all_ranks(model)
        assert optimizer.outer_steps == 3  # type: ignore[attr-defined]
        before = copy.deepcopy(model.state_dict())
        optimizer.synchronize()  # type: ignore[attr-defined]  # nothing has happened since
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    two_ranks.run(check)


def test_fragments_that_overlap_with_steps(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DiLoCo(
            torch.optim.Adam(model.parameters(), lr=0.01),
            inner_steps=4,
            fragments=2,
            delay=1,
            mixing=0.25,
            outer_lr=0.7,
            outer_momentum=0.9,
            compression=hvd.Compression.none,
        )
        simulated = Simulated(2, 0.7, 0.9, 0.25)
        fragments = {2: [0, 1], 0: [2, 3, 4, 5]}  # which are sent after steps 2, 6, ... and 4, 8, ...
        for step in range(1, 14):
            inputs, targets = batches(step)[step - 1]
            step_on(model, optimizer, own_rows(inputs), own_rows(targets))
            simulated.step(step - 1)
            taken = fragments.get((step - 1) % 4) if step > 1 else None
            if taken and step > 2:
                simulated.take(taken, late=True)
            if sent := fragments.get(step % 4):
                simulated.send(sent)
            compare(model, simulated.models[rank])
        optimizer.synchronize()  # type: ignore[attr-defined]
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_ranks_that_begin_differently_become_alike(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of(seed=rank)
        optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.0), inner_steps=2)
        first = [param.detach().clone() for param in model_of(seed=0).parameters()]
        for step in range(2):
            inputs, targets = batches(step + 1)[step]
            step_on(model, optimizer, own_rows(inputs), own_rows(targets))
        for param, expected in zip(model.parameters(), first, strict=True):
            torch.testing.assert_close(param.detach(), expected, rtol=0, atol=1e-6)

    two_ranks.run(check)


def test_int8_between_hosts(two_ranks: RankPool) -> None:
    def check(rank: int) -> int:
        with by_sockets():
            torch.manual_seed(0)
            model = nn.Linear(100, 100)
            optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), inner_steps=2)
            for step in range(8):
                generator = torch.Generator().manual_seed(2 * step + rank)
                step_on(model, optimizer, torch.randn(8, 100, generator=generator), torch.zeros(8, 100))
            assert_same_on_all_ranks(model)
            count: int = optimizer.bytes_given  # type: ignore[attr-defined]
            return count

    # The matrix as int8, biases and the number of ranks as float32.
    assert two_ranks.run(check) == [10000 + 4 * 40 + 400 + 4] * 2


def test_a_rank_outside_steps_alone(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        pair = hvd.add_process_set([0, 2])
        model = model_of()
        optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=0.1), inner_steps=2, process_set=pair)
        for step in range(4):
            inputs, targets = batches(step + 1, size=3)[step]
            step_on(model, optimizer, own_rows(inputs), own_rows(targets))
        optimizer.synchronize()  # type: ignore[attr-defined]
        weights = hvd.allgather_object(model[0].weight.detach())  # type: ignore[union-attr]
        assert torch.equal(weights[0], weights[2])
        assert not torch.equal(weights[0], weights[1])
        assert (optimizer.inner_steps is None) == (rank == 1)  # type: ignore[attr-defined]

    three_ranks.run(check)


def test_a_rank_that_has_joined_does_not_count(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), inner_steps=2)
        for _ in range(2 if rank == 1 else 4):
            model.weight.grad = torch.ones(1, 2)
            optimizer.step()
        hvd.join()
        # Rank 0's last two steps are not halved.
        assert model.weight.tolist() == ([[-4.0, -4.0]] if rank == 0 else [[-2.0, -2.0]])

    two_ranks.run(check)


def test_state_goes_on_where_it_was(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
            for step in steps:
                inputs, targets = batches(step + 1)[step]
                step_on(model, optimizer, own_rows(inputs), own_rows(targets))

        def make() -> tuple[nn.Module, Any]:
            model = model_of()
            return model, hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), inner_steps=2, outer_momentum=0.9)

        model, optimizer = make()
        run(model, optimizer, range(3))
        optimizer.synchronize()
        saved = pickle.loads(pickle.dumps((model.state_dict(), optimizer.state_dict())))
        run(model, optimizer, range(3, 7))
        resumed, again = make()
        resumed.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        run(resumed, again, range(3, 7))
        assert all(map(torch.equal, model.parameters(), resumed.parameters()))
        plain = torch.optim.SGD(resumed.parameters(), lr=0.1)
        plain.load_state_dict(saved[1])  # which an optimizer without outer steps can take, too

    two_ranks.run(check)


def test_a_step_that_a_grad_scaler_skips_counts(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = hvd.LocalSGD(torch.optim.SGD(model.parameters(), lr=1.0), inner_steps=2)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(2):
            optimizer.zero_grad()
            factor = torch.inf if rank == 1 and step == 0 else 1.0
            scaler.scale((model.weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert model.weight.tolist() == [[-1.5, -1.5]]  # two steps of rank 0, one of rank 1

    two_ranks.run(check)


def test_a_copy_is_a_plain_optimizer(job_of_one: None) -> None:
    model = model_of()
    optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), inner_steps=2)
    copied = copy.deepcopy(optimizer)
    assert type(copied) is torch.optim.SGD
    assert not hasattr(copied, "_local_steps")
    assert type(optimizer) is type(hvd.LocalSGD(optimizer, inner_steps=2))  # wrapped again


def test_arguments(job_of_one: None) -> None:
    model = model_of()

    def made(**arguments: Any) -> Any:
        return hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), **arguments)

    for arguments, message in [
        ({"outer_lr": 0}, "outer_lr=0 must be a finite number greater than 0"),
        ({"outer_momentum": 1.0}, "outer_momentum=1.0 must be 0 or more and less than 1"),
        ({"mixing": "half"}, "mixing='half' must be 0 or more and less than 1"),
        ({"compression": hvd.Compression.fp16}, "must be hvd.Compression.int8 or hvd.Compression.none"),
        ({"named_parameters": [("x", nn.Parameter(torch.ones(1)))]}, "named_parameters does not name all"),
    ]:
        with pytest.raises(ValueError, match=message):
            made(**arguments)
    with pytest.raises(ValueError, match=r"an optimizer object is needed, .* not Sequential\("):
        hvd.DiLoCo(model)  # type: ignore[type-var]
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="the optimizer is a DistributedOptimizer"):
        hvd.LocalSGD(hvd.DistributedOptimizer(plain))
    with pytest.raises(ValueError, match="one of DiLoCo or LocalSGD"):
        hvd.DistributedOptimizer(made())
    optimizer = made(inner_steps=2)
    step_on(model, optimizer, *batches(1)[0])
    with pytest.raises(ValueError, match="works before the first step only"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_ranks_with_other_settings_are_told(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), inner_steps=2 + rank)
        with pytest.raises(hvd.HorovodInternalError, match=r"(?s)the parameters of DiLoCo.*inner_steps=2"):
            step_on(model, optimizer, *batches(1)[0])

    two_ranks.run(check)
