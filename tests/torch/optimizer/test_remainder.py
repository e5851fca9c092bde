"""Backward passes over disjoint parts of a model before one step, also where a rank leaves some out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool

PARTS = ("a", "b", "c")


class Parts(nn.ModuleDict):
    """Three parts without common parameters."""

    def __init__(self) -> None:
        super().__init__({name: nn.Linear(2, 1) for name in PARTS})

    def backward(self, names: str, scale: float) -> None:
        """A pass over the parts of these names; the gradient of each element of a weight is `scale`."""
        torch.stack([self[name](torch.full((1, 2), scale)) for name in names]).sum().backward()

    def gradients(self) -> list[float | None]:
        """[parts] an element of the gradient of each weight; None where there is none."""
        gradients = [self[name].weight.grad for name in PARTS]
        return [None if gradient is None else float(gradient[0, 1]) for gradient in gradients]


def distributed(model: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), **options)


def groups_of(model: Parts, kind: str) -> Any:
    parameters = list(model.parameters())
    return {"no groups": None, "a number": 2, "lists": [[parameters[0], parameters[2]], parameters[4:6]]}[kind]


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("groups", ["no groups", "a number", "lists"])
def test_each_pass_leaves_reduced_gradients(two_ranks: RankPool, op: int, groups: str) -> None:
    def check(rank: int) -> None:
        model = Parts()
        optimizer = distributed(model, op=op, groups=groups_of(model, groups))
        of_all = 1.5 if op == hvd.Average else 3.0
        for step in range(3):
            before = model["c"].weight.detach().clone()
            model.backward("a", rank + 1.0)
            assert model.gradients() == [of_all, None, None]
            model.backward("b", 2.0 * (rank + 1))
            assert model.gradients() == [of_all, 2 * of_all, None]
            if step == 1:
                model.backward("c", 4.0 * (rank + 1))
                assert model.gradients() == [of_all, 2 * of_all, 4 * of_all]
            if step == 2:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            assert torch.equal(model["c"].weight, before - 4 * of_all if step == 1 else before)
            optimizer.zero_grad()

    two_ranks.run(check)


def test_a_rank_that_leaves_out_passes(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = Parts()
        optimizer = distributed(model)
        for step in range(4):
            before = {name: model[name].weight.detach().clone() for name in PARTS}
            model.backward("a", rank + 1.0)
            # Rank 0 has further passes, and rank 1 takes part in step(); then the reverse; then both have them.
            if rank == step % 2 or step == 3:
                model.backward("b", 2.0)
                assert model.gradients() == [1.5, 2.0 if step == 3 else 1.0, None]
                if step != 1:
                    model.backward("c", 6.0)
            optimizer.step()
            parts = {"a": 1.5, "b": 2.0 if step == 3 else 1.0, "c": (3.0, 0.0, 3.0, 6.0)[step]}
            for name, gradient in parts.items():
                assert torch.equal(model[name].weight, before[name] - gradient), (step, name)
            optimizer.zero_grad()

    two_ranks.run(check)


def test_parts_have_as_many_passes_as_a_step(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = Parts()
        optimizer = distributed(model, backward_passes_per_step=2)
        for _ in range(2):
            for name, scale in (("a", 1.0), ("b", 2.0)):
                for _ in range(2):
                    model.backward(name, scale * (rank + 1))
            assert model.gradients() == [3.0, 6.0, None]
            model.backward("c", rank + 1.0)  # one pass of two: step() exchanges it
            assert model.gradients()[2] == rank + 1
            optimizer.step()
            assert model.gradients() == [3.0, 6.0, 1.5]
            optimizer.zero_grad()
        # Passes that only accumulate count for nothing here, too.
        model.backward("a", rank + 1.0)
        model.backward("a", rank + 1.0)
        with optimizer.accumulating():
            model.backward("b", rank + 1.0)
        optimizer.step()
        assert model.gradients() == [3.0, 1.5, None]

    two_ranks.run(check)


def test_a_part_that_is_reached_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = Parts()
        optimizer = distributed(model)
        model.backward("a", 1.0)
        for again in ("a", "ab", "ba"):
            with pytest.raises(AssertionError, match=r"backward_passes_per_step.*no rank has reached"):
                model.backward(again, 1.0)
        optimizer.zero_grad()
        model.backward("b", 1.0)
        model.backward("c", 1.0)
        with pytest.raises(AssertionError, match="backward_passes_per_step=1 times"):
            model.backward("c", 1.0)
        optimizer.step()
        # What changes between two exchanges of a step is no part of it.
        optimizer.zero_grad()
        model.backward("a", 1.0)
        model["c"].requires_grad_(False)
        with pytest.raises(AssertionError, match="parameters have changed between two backward passes"):
            model.backward("b", 1.0)
        with pytest.raises(AssertionError, match="backward_passes_per_step=1 times"):
            model.backward("b", 1.0)
        optimizer.zero_grad()
        model.backward("b", rank + 1.0)
        optimizer.step()
        assert model.gradients() == [None, 1.5, None]

    two_ranks.run(check)


def test_a_rank_that_leaves_out_one_of_two_optimizers(two_ranks: RankPool) -> None:
    """The step of the first one must not wait for a rank that waits for the second one."""

    def check(rank: int) -> None:
        first, second = Parts(), Parts()
        optimizers = [distributed(first)]
        first.backward("a", rank + 1.0)  # while it is alone, with parts that may follow
        optimizers.append(distributed(second))
        optimizers[0].step()
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            inputs = torch.full((1, 2), rank + 1.0)
            losses = [first["a"](inputs)] + [second["a"](inputs)] * (rank == 0 or step == 0)
            torch.stack(losses).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            assert first.gradients() == [1.5, None, None]
            assert second.gradients() == [0.5 if step else 1.5, None, None]

    two_ranks.run(check)


def test_two_optimizers_have_one_part_each(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        models = Parts(), Parts()
        optimizers = [distributed(model) for model in models]
        models[0].backward("a", rank + 1.0)
        with pytest.raises(AssertionError, match="backward_passes_per_step=1 times"):
            models[0].backward("b", 1.0)
        optimizers[0].step()

    two_ranks.run(check)


@pytest.mark.parametrize("compression", ["none", "fp16", "int8"])
def test_compressed_parts(two_ranks: RankPool, compression: str) -> None:
    def check(rank: int) -> None:
        model = Parts()
        optimizer = distributed(model, compression=getattr(hvd.Compression, compression))
        model.backward("a", rank + 1.0)
        model.backward("b", rank + 1.0)
        assert model.gradients() == [1.5, 1.5, None]
        optimizer.step()

    two_ranks.run(check)


def test_parts_of_a_process_set_and_of_ranks_that_have_joined(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        some = hvd.add_process_set([0, 2])
        model, table = Parts(), nn.Embedding(4, 2, sparse=True)
        optimizer = distributed(model, process_set=some)
        for scale, names in ((1.0, "ab"), (2.0, "ac")):
            for name in names:
                model.backward(name, scale * (rank + 1))
            optimizer.step()
            gradient = 2.0 * scale  # of rank 1, which is outside the set, and the average of the others'
            assert model.gradients() == [gradient if name in names else None for name in PARTS]
            optimizer.zero_grad()
        # A part whose first gradient is sparse.
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*model.parameters(), *table.parameters()], lr=1.0))
        if rank < 2:
            model.backward("a", rank + 1.0)
            if rank == 0:
                table(torch.tensor([1])).sum().backward()
            optimizer.step()
            assert model.gradients() == [1.0, None, None]
            assert table.weight.grad is not None
            assert table.weight.grad.to_dense()[:, 0].tolist() == pytest.approx([0.0, 1 / 3, 0.0, 0.0])
        hvd.join()

    three_ranks.run(check)
