"""broadcast_parameters and broadcast_optimizer_state: every rank starts from one rank's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.torch.rank_pool import RankPool


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def test_parameters_and_buffers_in_every_accepted_form(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        forms: list[Callable[[nn.Module], Any]] = [
            lambda model: model.state_dict(),
            lambda model: dict(model.named_parameters()),
            lambda model: list(model.named_parameters())[:: 1 - 2 * hvd.rank()],  # another order on each rank
            lambda model: list(model.parameters()),
            lambda model: tuple(model.state_dict().values()),
        ]
        for form in forms:
            model, root = model_of(rank), model_of(1)
            model[1].num_batches_tracked += rank
            hvd.broadcast_parameters(form(model), root_rank=1)
            for ours, theirs in zip(model.parameters(), root.parameters(), strict=True):
                assert torch.equal(ours, theirs)
        with pytest.raises(ValueError, match=r"not <generator .*; wrap an iterator .* in list"):
            hvd.broadcast_parameters(model.named_parameters(), 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="root_rank=2"):
            hvd.broadcast_parameters(model.state_dict(), 2)

    two_ranks.run(check)


def test_tensors_of_all_types_layouts_and_sizes(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        base = torch.arange(12.0).reshape(3, 4) * (1 - rank)
        state = {
            "transposed": base.t(),
            "column": base[:, 1],
            "flag": torch.tensor([rank == 0, True]),
            "half": torch.full((3,), float(rank), dtype=torch.bfloat16),
            "scalar": torch.tensor(rank),
            "empty": torch.empty(0, 3),
            "extra": {"not": "a tensor"},
            "nothing": None,
        }
        hvd.broadcast_parameters(state, 0)
        assert torch.equal(base, torch.arange(12.0).reshape(3, 4)) or rank == 1
        assert torch.equal(state["transposed"], torch.arange(12.0).reshape(3, 4).t())  # type: ignore[arg-type]
        assert state["flag"].tolist() == [True, True]  # type: ignore[union-attr]
        assert state["half"].tolist() == [0.0] * 3  # type: ignore[union-attr]
        assert state["scalar"].item() == 0  # type: ignore[union-attr]

    two_ranks.run(check)


def test_different_models_are_an_error_that_names_the_difference(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(
            MismatchError, match=r"Rank 0 has: weight: shape \(2, 3\).*Rank 1 has: weight: shape \(2, 4\)"
        ):
            hvd.broadcast_parameters(nn.Linear(3 + rank, 2).state_dict(), 0)
        with pytest.raises(MismatchError, match=r"Only rank 0 has: weight"):
            hvd.broadcast_parameters(
                nn.Linear(3, 2, bias=True).state_dict() if rank == 0 else {"bias": torch.ones(2)}, 0
            )
        with pytest.raises(MismatchError, match=r"Adam\b.*SGD"):
            kind = [torch.optim.Adam, torch.optim.SGD][rank]
            hvd.broadcast_optimizer_state(kind(nn.Linear(3, 2).parameters(), lr=0.1), 0)
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    two_ranks.run(check)


OPTIMIZERS: dict[str, Callable[[Any, int], torch.optim.Optimizer]] = {
    "sgd": lambda params, rank: torch.optim.SGD(params, lr=0.1 * (rank + 1)),
    "momentum": lambda params, rank: torch.optim.SGD(params, lr=0.1, momentum=0.5 + 0.1 * rank),
    "adam": lambda params, rank: torch.optim.Adam(params, lr=0.1, betas=(0.9 - 0.1 * rank, 0.99)),
    "amsgrad": lambda params, rank: torch.optim.AdamW(params, lr=0.1, amsgrad=True, weight_decay=0.1 * rank),
    "tensor lr": lambda params, rank: torch.optim.Adam(params, lr=torch.tensor(0.1 * (rank + 1)), capturable=False),
    "rmsprop": lambda params, rank: torch.optim.RMSprop(params, lr=0.1, momentum=0.2, centered=True),
    "adagrad": lambda params, rank: torch.optim.Adagrad(params, lr=0.1),
    "rprop": lambda params, rank: torch.optim.Rprop(params, lr=0.1, etas=(0.4 + 0.1 * rank, 1.3)),
}


def plain(optimizer: torch.optim.Optimizer) -> Any:
    """The state as Python numbers, to compare exactly."""

    def converted(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {key: converted(item) for key, item in value.items()}
        return [converted(item) for item in value] if isinstance(value, (list, tuple)) else value

    return converted(optimizer.state_dict())


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("who_has_state", [(0, 1), (0,), (1,), ()])
def test_optimizer_state(two_ranks: RankPool, who_has_state: tuple[int, ...], wrapped: bool) -> None:
    def check(rank: int) -> None:
        for name, make in OPTIMIZERS.items():
            model = model_of(0)
            optimizer = make(model.parameters(), rank)
            if rank in who_has_state:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.randn(4, 4)).square().sum().backward()
                    optimizer.step()
            optimizer.zero_grad()
            if wrapped:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            parameters = [parameter.detach().clone() for parameter in model.parameters()]
            before = plain(optimizer)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            after = hvd.allgather_object(plain(optimizer))
            assert after[0] == after[1], name
            assert rank != 0 or before == plain(optimizer), name
            for old, new in zip(parameters, model.parameters(), strict=True):
                assert torch.equal(old, new), name
                assert new.grad is None or not new.grad.any(), name
            # The received state is complete: training continues in the same way.
            hvd.broadcast_parameters(model.state_dict(), 0)
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            assert len({str(state) for state in hvd.allgather_object(plain(optimizer))}) == 1, name

    two_ranks.run(check)


def test_state_of_other_shapes(two_ranks: RankPool) -> None:
    """What other makers' optimizers keep: nested containers, another type than the parameter's, entries of none."""

    class Odd(torch.optim.SGD):
        def remember(self, rank: int) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter] = {
                        "nested": [torch.full((rank + 1,), float(rank)), (torch.tensor(rank), "text"), None],
                        "master": parameter.detach().double() + rank,
                    }
            self.state["global"] = {"counts": torch.tensor([rank, rank])}  # type: ignore[index]

    def check(rank: int) -> None:
        parameter = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        optimizer = Odd([parameter], lr=0.1)
        optimizer.remember(rank)
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        state = optimizer.state[parameter]
        assert state["nested"][0].tolist() == [1.0, 1.0]
        assert state["nested"][1][0].item() == 1
        assert (state["nested"][1][1], state["nested"][2]) == ("text", None)
        assert state["master"].dtype is torch.float64
        assert state["master"].tolist() == [2.0, 2.0]
        assert optimizer.state["global"]["counts"].tolist() == [1, 1]  # type: ignore[index]

    two_ranks.run(check)


def test_resuming_from_a_checkpoint_that_one_rank_has(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of(rank)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if rank == 0:
            trained = model_of(5)
            old = torch.optim.Adam(trained.parameters(), lr=0.5)
            trained(torch.ones(3, 4)).sum().backward()
            old.step()
            model.load_state_dict(trained.state_dict())
            optimizer.load_state_dict(old.state_dict())
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert optimizer.state[model[0].weight]["step"].item() == 1
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4) + rank).sum().backward()
            optimizer.step()
        states = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
        assert states[0] == states[1]

    two_ranks.run(check)


def test_lbfgs_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
        for wrapped in (optimizer, hvd.DistributedOptimizer(optimizer)):
            with pytest.raises(ValueError, match=r"on rank \d: .*LBFGS cannot be broadcast: .* new LBFGS"):
                hvd.broadcast_optimizer_state(wrapped, 0)

    two_ranks.run(check)


def test_an_optimizer_without_state_has_zero_gradients_afterwards() -> None:
    hvd.init()
    try:
        used, unused, frozen = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
        frozen.requires_grad_(False)
        used.grad = torch.ones(2)
        optimizer = torch.optim.SGD([used, unused, frozen], lr=0.1, momentum=0.9)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert unused.grad is not None and unused.grad.tolist() == [0.0, 0.0] and frozen.grad is None
        assert used.grad.tolist() == [1.0, 1.0]
        optimizer.step()
        unused.grad = None
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert unused.grad is None
    finally:
        hvd.shutdown()
