"""DistributedOptimizer's rarer options: sparse gradients, process sets, Adasum, ranks that have run out of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.errors import MismatchError
from tests.torch.rank_pool import RankPool
from tests.torch.training import (
    BATCH,
    assert_close,
    assert_same_on_all_ranks,
    batches,
    model_of,
    own_rows,
    trained_alone,
)

# What a torch.optim class needs beside parameters. LBFGS is not here: it chooses the number of its evaluations, which
# may differ from rank to rank; Adam of sparse gradients has a separate test.
EVERY: dict[str, dict[str, Any]] = {
    "ASGD": {"lr": 0.1},
    "Adadelta": {"lr": 1.0},
    "Adafactor": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adamax": {"lr": 0.01},
    "Muon": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "momentum": 0.5},
    "Rprop": {"lr": 0.01},
    "SGD": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
}


def test_no_optimizer_of_pytorch_is_forgotten() -> None:
    expected = {*EVERY, "LBFGS", "SparseAdam", "Optimizer"}
    assert {name for name, value in vars(torch.optim).items() if isinstance(value, type)} == expected


@pytest.mark.parametrize("kind", EVERY)
def test_every_optimizer_of_pytorch_trains_as_in_one_process(two_ranks: RankPool, kind: str) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        matrices = [parameter for parameter in parameters if parameter.dim() == 2 or kind != "Muon"]
        optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(matrices, **EVERY[kind])
        return optimizer

    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters())
        for inputs, targets in batches():
            model.zero_grad()
            nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
            optimizer.step()
        # Rprop steps by signs: one that rounding turns is a step of another size.
        if kind != "Rprop":
            assert_close(model, trained_alone(make))
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


SPARSE: list[tuple[str, dict[str, Any], Callable[[Any], torch.optim.Optimizer]]] = [
    ("rows", {}, lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1)),
    ("as dense", {"sparse_as_dense": True}, lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1)),
    ("sgd", {}, lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
    ("halves", {"compression": hvd.Compression.fp16}, lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
    ("predivided", {"gradient_predivide_factor": 4.0}, lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
]


@pytest.mark.parametrize(("options", "make"), [case[1:] for case in SPARSE], ids=[case[0] for case in SPARSE])
def test_sparse_gradients(
    two_ranks: RankPool, options: dict[str, Any], make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    def check(rank: int) -> None:
        embedding = nn.Embedding(5, 2, sparse=True)
        hvd.broadcast_parameters(embedding.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(make(embedding.parameters()), **options)
        for _ in range(3):
            optimizer.zero_grad()
            embedding(torch.tensor([rank, 4, 4])).sum().backward()
            gradient = embedding.weight.grad
            assert gradient is not None
            assert gradient.is_sparse
            assert gradient.to_dense()[:, 0].tolist() == [0.5, 0.5, 0.0, 0.0, 2.0]
            optimizer.step()
        assert_same_on_all_ranks(embedding)
        # A rank that had a sparse gradient before and has none now; then none on any rank.
        optimizer.zero_grad()
        if rank == 0:
            embedding(torch.tensor([1])).sum().backward()
        optimizer.step()
        assert_same_on_all_ranks(embedding)
        before = embedding.weight.detach().clone()
        optimizer.zero_grad(set_to_none=True)
        if not isinstance(optimizer, torch.optim.SparseAdam):
            optimizer.step()
            assert embedding.weight.grad is None
            assert torch.equal(embedding.weight, before)

    two_ranks.run(check)


def test_a_gradient_that_is_sparse_on_one_rank_or_late(two_ranks: RankPool) -> None:
    class Tied(nn.Module):
        """An embedding that may also be used as a matrix, and a head."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.table = nn.Embedding(4, 3, sparse=True)
            self.late = nn.Embedding(4, 3, sparse=True)
            self.head = nn.Linear(3, 1)

    def check(rank: int) -> None:
        model = Tied()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(3):
            optimizer.zero_grad()
            # Dense on rank 1, which leaves the embedding out of its graph and gives the gradient by hand.
            if rank == 0:
                model.head(model.table(torch.tensor([2, 2]))).sum().backward()
            else:
                model.table.weight.grad = torch.ones(4, 3)
                model.head(torch.ones(1, 3)).sum().backward()
            if step == 2:  # known as dense by then: it is sent so, and returned as sparse
                optimizer.zero_grad()
                model.head(model.late(torch.tensor([rank]))).sum().backward()
                assert model.late.weight.grad is not None
                assert model.late.weight.grad.is_sparse
            optimizer.step()
            assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_gradients_of_a_process_set(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        pair = hvd.add_process_set([0, 2])
        model = model_of()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=pair
        )
        assert optimizer.process_set is pair  # type: ignore[attr-defined]
        inputs, targets = batches(1, 3)[0]
        both = [row for row in range(len(inputs)) if row // BATCH != 1]
        rows = both if rank != 1 else list(range(BATCH, 2 * BATCH))
        nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
        optimizer.step()
        reference = model_of()
        alone = torch.optim.SGD(reference.parameters(), lr=0.1)
        nn.functional.mse_loss(reference(inputs[rows]), targets[rows]).backward()
        alone.step()
        assert_close(model, reference)
        for wrong, message in (([0], "must be a ProcessSet"), (type(pair)([0, 1]), "is not registered")):
            with pytest.raises(ValueError, match=message):
                hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=wrong)
        hvd.shutdown()
        hvd.init()

    three_ranks.run(check)


def test_ranks_with_different_numbers_of_batches(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        reference = model_of()
        alone = torch.optim.SGD(reference.parameters(), lr=0.1)
        for number, (inputs, targets) in enumerate(batches(5)):
            alone.zero_grad()
            nn.functional.mse_loss(reference(inputs), targets).backward()
            if number >= 3:  # rank 1 has no more: its half of the average is zero
                alone.zero_grad()
                (nn.functional.mse_loss(reference(inputs[:BATCH]), targets[:BATCH]) / 2).backward()
            alone.step()
            if rank == 1 and number >= 3:
                continue
            optimizer.zero_grad()
            nn.functional.mse_loss(model(own_rows(inputs)), own_rows(targets)).backward()
            optimizer.step()
        assert hvd.join() == 0
        # Who has joined had no part in the last steps, and takes over from who had.
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        assert_close(model, reference)
        assert_same_on_all_ranks(model)

    two_ranks.run(check)


def test_a_rank_that_has_no_batch_at_all(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for sparse in (False, True):
            model = nn.Sequential(nn.Embedding(5, 2, sparse=sparse), nn.Linear(2, 1))
            hvd.broadcast_parameters(model.state_dict(), 0)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), sparse_as_dense=sparse
            )
            if rank == 0:
                for _ in range(3):
                    optimizer.zero_grad()
                    model(torch.tensor([1, 2])).sum().backward()
                    gradient = next(model[1].parameters()).grad
                    optimizer.step()
                assert gradient is not None
            assert hvd.join() in (0, 1)
        # Rows of sparse gradients cannot wait for who has joined.
        table = nn.Embedding(5, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), [("table", table.weight)])
        if rank == 0:
            with pytest.raises(MismatchError, match=r"'table' is sent by an allgather.*sparse_as_dense=True"):
                table(torch.tensor([1])).sum().backward()
        hvd.join()

    two_ranks.run(check)


def test_ranks_that_disagree_once_another_has_joined(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        if rank < 2:
            model = torch.nn.Linear(2, 3 + rank)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            message = rf"Rank {rank} has: 2 parameters.*weight.*{3 + rank}, 2.* once rank 2 has called join"
            with pytest.raises(MismatchError, match=f"^The ranks disagree about the parameters of .*{message}"):
                model(torch.ones(1, 2)).sum().backward()
            optimizer.zero_grad()
            with pytest.raises(
                MismatchError, match=f"^The ranks disagree about the parameters to .*{3 + rank}, 2.* called join"
            ):
                hvd.broadcast_parameters(model.state_dict(), 0)
        hvd.join()

    three_ranks.run(check)


def test_ranks_that_have_made_different_numbers_of_optimizers(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        pair, single = hvd.add_process_set([0, 1]), hvd.add_process_set([2])

        def train(process_set: hvd.ProcessSet) -> None:
            model = model_of()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=process_set
            )
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            hvd.allreduce(next(model.parameters()), process_set=process_set)

        if pair.included():
            train(pair)
        train(hvd.global_process_set)
        train(pair if pair.included() else single)
        train(hvd.global_process_set)
        hvd.shutdown()
        hvd.init()

    three_ranks.run(check)
