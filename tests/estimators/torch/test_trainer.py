"""Epochs on a rank: tensors of a batch, and what an epoch begins with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.estimators.torch.trainer import Trainer, tensor_of
from tests.estimators.specs import spec_of


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_tensors_share_memory_unless_the_spool_has_a_smaller_type() -> None:
    matrix = numpy.ones((2, 6), numpy.float32)
    tensor = tensor_of(matrix, Field(("x",), ("c0",), (6,), "float32", (2, 3)))
    matrix[0, 0] = 7
    assert tensor.shape == (2, 2, 3) and tensor[0, 0, 0] == 7
    pixels = tensor_of(matrix.astype(numpy.uint8), Field(("x",), ("c0",), (6,), "float32", (6,), (), "uint8"))
    assert pixels.dtype == torch.float32 and pixels[0, 0] == 7


@pytest.mark.usefixtures("alone")
def test_an_epoch_commits_before_its_first_step_and_after_each() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))
    parts = TorchParts(net, torch.optim.SGD(net.parameters(), lr=0.01), [nn.MSELoss()], [1.0], [[]])
    spec = dataclasses.replace(spec_of(batch_size=4, framework=parts), backward_passes_per_step=2, shuffle=False)
    features = numpy.random.default_rng(1).normal(size=(18, 3)).astype(numpy.float32)
    rows = RankRows(([features], [features.sum(1, keepdims=True)]), numpy.arange(18), (18,))
    trainer = Trainer(spec)
    commits: list[tuple[int, dict[str, torch.Tensor], int]] = []

    def commit(done: int) -> None:
        commits.append((done, trainer.here(), trainer.sums.rows))

    trainer.train(rows, 0, 0, lambda *_: None, commit)
    assert [(done, counted) for done, _, counted in commits] == [(0, 0), (2, 8), (4, 15), (5, 18)]
    after = {name: value.clone() for name, value in net.state_dict().items()}
    # The same epoch from its second step on, where the first has left parameters, generators and sums.
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5))
    again = Trainer(
        dataclasses.replace(
            spec,
            framework=dataclasses.replace(parts, model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.01)),
        )
    )
    with pytest.raises(InterruptedError):
        again.train(rows, 0, 0, lambda *_: None, interrupting(2))
    again.resume_within(commits[1][1])
    again.train(rows, 0, 2, lambda *_: None)
    for name, value in other.state_dict().items():
        assert torch.equal(value, after[name]), name


def interrupting(at: int) -> Callable[[int], None]:
    def commit(done: int) -> None:
        if done == at:
            raise InterruptedError

    return commit
