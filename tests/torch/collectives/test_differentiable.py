"""Gradients through the collectives: against finite differences of what all ranks compute together, and by their rules.

Horovod's gradients are those of the sum of all ranks' losses times a factor that depends on the operation: 1 for
allreduce and alltoall, 1 / size for allgather and broadcast, size for reducescatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.torch.mpi_ops import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from tests.support.gradient_table import ELEMENTS, TABLE, forms, sets_of
from tests.torch.rank_pool import RankPool
from tests.torch.test_numbers import sets

# What an operation makes of one float64 tensor [rows, 2] on the ranks of a set; its outputs that have a gradient.
Form = Callable[[torch.Tensor, Any, Sequence[int]], Sequence[torch.Tensor]]


def splits_of(tensor: torch.Tensor, ranks: Sequence[int]) -> list[int]:
    return [len(tensor) - len(ranks) + 1] + [1] * (len(ranks) - 1)


FORMS: list[tuple[str, Callable[[int], float], Form]] = [
    ("sum", lambda n: 1, lambda t, s, r: [hvd.allreduce(t, op=hvd.Sum, process_set=s)]),
    ("average", lambda n: 1, lambda t, s, r: [hvd.allreduce(t, process_set=s)]),
    ("scaled", lambda n: 1, lambda t, s, r: [hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5, process_set=s)]),
    ("group", lambda n: 1, lambda t, s, r: hvd.grouped_allreduce([t[1:], t * t], postscale_factor=3.0, process_set=s)),
    ("allgather", lambda n: 1 / n, lambda t, s, r: [hvd.allgather(t, process_set=s)]),
    ("group of rows", lambda n: 1 / n, lambda t, s, r: hvd.grouped_allgather([t, t[:1] * 2], process_set=s)),
    ("broadcast", lambda n: 1 / n, lambda t, s, r: [hvd.broadcast(t, r[-1], process_set=s)]),
    ("even alltoall", lambda n: 1, lambda t, s, r: [hvd.alltoall(t[: len(r)], process_set=s)]),
    ("alltoall", lambda n: 1, lambda t, s, r: hvd.alltoall(t, splits_of(t, r), process_set=s)[:1]),
    ("alltoall of some rows", lambda n: 1, lambda t, s, r: hvd.alltoall(t, [1] * len(r), process_set=s)[:1]),
    ("sum of rows", lambda n: n, lambda t, s, r: [hvd.reducescatter(t, op=hvd.Sum, process_set=s)]),
    ("average of rows", lambda n: n, lambda t, s, r: [hvd.reducescatter(t, process_set=s, prescale_factor=2.0)]),
    (
        "group of shares",
        lambda n: n,
        lambda t, s, r: hvd.grouped_reducescatter([t, t[1:].sin()], op=hvd.Sum, process_set=s, postscale_factor=0.5),
    ),
]


@pytest.mark.parametrize(("factor", "form"), [each[1:] for each in FORMS], ids=[each[0] for each in FORMS])
def test_finite_differences(three_ranks: RankPool, factor: Callable[[int], float], form: Form) -> None:
    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            generator = torch.Generator().manual_seed(7)
            inputs = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)

            def loss(local: torch.Tensor, process_set: Any = process_set, ranks: Sequence[int] = ranks) -> torch.Tensor:
                """This rank's part of what all ranks of the set compute; other weights on each of them."""
                outputs = form(local, process_set, ranks)
                weights = torch.Generator().manual_seed(rank)
                return torch.stack(
                    [
                        (output * torch.randn(output.shape, dtype=torch.float64, generator=weights)).sum()
                        for output in outputs
                    ]
                ).sum()

            leaf = inputs[rank].clone().requires_grad_()
            loss(leaf).backward()
            assert leaf.grad is not None
            step = 1e-5
            for each in ranks:
                for row, column in ((0, 0), (1, 1), (3, 0)):
                    total = []
                    for sign in (1, -1):
                        local = inputs[rank].clone()
                        if each == rank:
                            local[row, column] += sign * step
                        total.append(hvd.allreduce(loss(local), op=hvd.Sum, process_set=process_set).item())
                    slope = (total[0] - total[1]) / (2 * step)
                    if each == rank:
                        assert leaf.grad[row, column].item() == pytest.approx(slope * factor(len(ranks)), abs=1e-7)

    three_ranks.run(check)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_by_horovods_definition(pools: Callable[[int], RankPool], size: int) -> None:
    def check(rank: int) -> list[str]:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        everyone, *some = sets_of(size)
        wrong = []
        process_sets = [(hvd.global_process_set, everyone), *((hvd.add_process_set(ranks), ranks) for ranks in some)]
        for line, form in forms(hvd, lambda parts: torch.cat(parts)).items():  # type: ignore[arg-type]
            for process_set, ranks in process_sets:
                if rank not in ranks or ("Adasum" in line and len(ranks) == 3):
                    continue
                leaf = torch.arange(1.0, ELEMENTS + 1, dtype=torch.float64, requires_grad=True)
                (form(leaf, process_set, ranks).sum() * (rank + 1.0)).backward()  # type: ignore[attr-defined]
                assert leaf.grad is not None
                actual, expected = leaf.grad.tolist(), TABLE[line](rank, ranks)
                if actual != pytest.approx(expected):
                    wrong.append(f"{line} over {ranks}: {actual} is not {expected}")
        return wrong

    assert pools(size).run(check) == [[]] * size


REPLICATED: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
    ("sum", lambda t: hvd.allreduce(t, op=hvd.Sum)),
    ("average", lambda t: hvd.allreduce(t, prescale_factor=0.5)),
    ("rows of a sum, joined", lambda t: hvd.allgather(hvd.reducescatter(t, op=hvd.Sum))),
    ("rows of an average, joined", lambda t: hvd.allgather(hvd.reducescatter(t))),
    ("there and back", lambda t: hvd.alltoall(*hvd.alltoall(t, [2, 1]))[0]),
    ("groups", lambda t: torch.cat(hvd.grouped_allgather(hvd.grouped_reducescatter([t, t.cos()], op=hvd.Sum)))),
]


@pytest.mark.parametrize("function", [each[1] for each in REPLICATED], ids=[each[0] for each in REPLICATED])
def test_first_and_second_derivatives(two_ranks: RankPool, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Of what all ranks compute alike from the same input, so that the whole is a function of it."""

    def check(rank: int) -> None:
        leaf = torch.tensor([[0.5, 1.5], [-0.5, 2.5], [0.1, -0.7]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: function(t * t).tanh(), (leaf,))
        assert torch.autograd.gradgradcheck(lambda t: function(t * t).tanh(), (leaf,), gen_non_contig_grad_outputs=True)

    two_ranks.run(check)


def test_the_second_derivative_of_a_broadcast(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        leaf = torch.tensor([3.0], requires_grad=True)
        [gradient] = torch.autograd.grad(hvd.broadcast(leaf, 1) ** 3, leaf, create_graph=True)
        assert gradient.item() == [0.0, 27.0][rank]
        [second] = torch.autograd.grad(gradient * 1.0, leaf)
        assert second.item() == [0.0, 18.0][rank]

    two_ranks.run(check)


def test_by_their_rules(two_ranks: RankPool) -> None:
    def gradient(tensor: torch.Tensor, outputs: Sequence[torch.Tensor], rank: int) -> list[Any]:
        torch.stack([output.sum() * (rank + 1) for output in outputs]).sum().backward()
        assert tensor.grad is not None
        return tensor.grad.tolist()

    def check(rank: int) -> None:
        leaf = torch.ones(2, requires_grad=True)
        assert gradient(leaf, [hvd.allreduce(leaf, op=hvd.Sum)], rank) == [3.0, 3.0]
        leaf = torch.ones(rank + 1, requires_grad=True)
        assert gradient(leaf, [hvd.allgather(leaf)], rank) == [1.5] * (rank + 1)
        leaf = torch.ones(2, requires_grad=True)
        assert gradient(leaf, [hvd.broadcast(leaf, 1)], rank) == [[0.0, 0.0], [1.5, 1.5]][rank]
        leaf = torch.ones(3, requires_grad=True)
        rows, received = hvd.alltoall(leaf, [1, 2])
        assert not received.requires_grad
        assert gradient(leaf, [rows], rank) == [1.0, 2.0, 2.0]
        leaf = torch.ones(3, requires_grad=True)
        assert gradient(leaf, [hvd.reducescatter(leaf, op=hvd.Sum)], rank) == [2.0, 2.0, 4.0]
        leaf = torch.ones(3, requires_grad=True)
        assert gradient(leaf, [hvd.reducescatter(leaf)], rank) == [1.0, 1.0, 2.0]
        leaf = torch.ones(2, requires_grad=True)
        reduced = hvd.reducescatter(leaf, compression=hvd.Compression.fp16, op=hvd.Sum)
        assert gradient(leaf, [reduced], rank) == [2.0, 4.0]
        leaf = torch.ones(2, requires_grad=True)
        reduced = hvd.allreduce(leaf, op=hvd.Adasum)
        assert gradient(leaf, [reduced], rank) == [1.5, 1.5]  # of parallel gradients the average

    two_ranks.run(check)


def test_backward_in_another_order_on_each_rank(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for name in (None, "one name"):
            leaves = [torch.ones(2, requires_grad=True) for _ in range(4)]
            outputs = [
                hvd.allreduce(leaves[0], op=hvd.Sum, name=name),
                hvd.allgather(leaves[1], name=name),
                hvd.broadcast(leaves[2], 0, name=name),
                hvd.reducescatter(leaves[3], op=hvd.Sum, name=name),
            ]
            # Rank 1 goes backward through all at once, so that its order is autograd's: from the last to the first.
            if rank == 0:
                for output in reversed(outputs):
                    output.sum().backward()
            else:
                torch.stack([output.sum() for output in outputs]).sum().backward()
            grads = [leaf.grad.tolist() for leaf in leaves if leaf.grad is not None]
            assert grads == [[2.0, 2.0], [1.0, 1.0], [1.0 - rank] * 2, [2.0, 2.0]]

    two_ranks.run(check)


def test_a_rank_that_needs_no_gradient_counts_the_calls(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        pair = hvd.ProcessSet([0, 1])
        hvd.init(process_sets=[pair])
        if rank < 2:
            hvd.allreduce(torch.ones(2, requires_grad=rank == 0), process_set=pair)
            hvd.alltoall(torch.ones(2, requires_grad=rank == 0), process_set=pair)
        for _ in range(2):
            leaf = torch.ones(3, requires_grad=True)
            (hvd.allreduce(leaf, op=hvd.Sum).sum() + hvd.alltoall(leaf).sum()).backward()
            assert leaf.grad is not None
            assert leaf.grad.tolist() == [4.0] * 3

    three_ranks.run(check)


def test_horovods_autograd_functions(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        everyone = hvd.global_process_set

        def gradients(outputs: Any, leaf: torch.Tensor) -> list[Any]:
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.stack([output.sum() for output in outputs if output.is_floating_point()]).sum().backward()
            assert leaf.grad is not None
            return leaf.grad.tolist()

        def leaf() -> torch.Tensor:
            return torch.ones(2, requires_grad=True)

        tensor = leaf()
        assert gradients(HorovodAllreduce.apply(tensor, None, "a", hvd.Sum, 1.0, 1.0, everyone), tensor) == [2.0, 2.0]
        tensor = leaf()
        with pytest.warns(DeprecationWarning, match="average="):
            averaged = HorovodAllreduce.apply(tensor, True, "a", None, 1.0, 1.0, everyone)
        assert gradients(averaged, tensor) == [1.0, 1.0]
        tensor = leaf()
        assert gradients(HorovodGroupedAllreduce.apply(None, "a", hvd.Sum, 1.0, 1.0, everyone, tensor), tensor) == [
            2.0,
            2.0,
        ]
        tensor = leaf()
        assert gradients(HorovodAllgather.apply(tensor, "a", everyone), tensor) == [1.0, 1.0]
        tensor = leaf()
        assert gradients(HorovodGroupedAllgather.apply("a", everyone, tensor), tensor) == [1.0, 1.0]
        tensor = leaf()
        assert gradients(HorovodBroadcast.apply(tensor, 0, "a", everyone), tensor) == [1.0 - rank] * 2
        tensor = leaf()
        assert gradients(HorovodAlltoall.apply(tensor, None, "a", everyone), tensor) == [1.0, 1.0]
        tensor = leaf()
        assert gradients(HorovodAlltoall.apply(tensor, [1, 1], "a", everyone), tensor) == [1.0, 1.0]
        tensor = leaf()
        assert gradients(HorovodReducescatter.apply(tensor, "a", hvd.Sum, everyone, 1.0, 1.0), tensor) == [2.0, 2.0]
        tensor = leaf()
        shares = HorovodGroupedReducescatter.apply("a", hvd.Sum, everyone, 1.0, 1.0, tensor)
        assert gradients(shares, tensor) == [2.0, 2.0]

    two_ranks.run(check)
