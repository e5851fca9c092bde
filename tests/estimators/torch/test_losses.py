"""Means of losses that are right over rows and ranks, however the loss is written."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from spark_estimator.errors import DataError
from spark_estimator.estimators.torch.losses import (
    Tensors,
    TorchParts,
    compute_by_row,
    compute_joint_loss,
    counts_some,
    divides_by_class,
    get_reduction,
    is_from_torch,
    to_module,
)

LOSSES: list[tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = [
    (nn.KLDivLoss(reduction="batchmean"), torch.rand),
    (functools.partial(functional.kl_div, reduction="batchmean"), torch.rand),
    (nn.MSELoss(), torch.randn),
    (functools.partial(functional.huber_loss, delta=0.3), torch.randn),
]


def joint(loss: Callable[..., torch.Tensor], outputs: Tensors, labels: Tensors, weights: torch.Tensor | None) -> float:
    model = nn.Linear(1, 1)
    parts = TorchParts(model, torch.optim.SGD(model.parameters(), lr=0.1), [loss], [1.0], [[]])
    return compute_joint_loss(parts, outputs, labels, weights, len(labels[0]), list).value.item()


@pytest.mark.parametrize(("loss", "numbers"), LOSSES)
def test_weights_of_one_change_nothing(loss: Callable[..., torch.Tensor], numbers: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    output, label = torch.log_softmax(torch.randn(5, 4), 1), numbers(5, 4)
    expected = loss(output, label).item()
    assert joint(loss, [output], [label], None) == pytest.approx(expected)
    assert joint(loss, [output], [label], torch.ones(5)) == pytest.approx(expected)


def test_functions_with_settings_are_known_as_the_modules_that_do_the_same() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    loss = to_module(functools.partial(functional.cross_entropy, ignore_index=0, weight=weight))
    assert isinstance(loss, nn.CrossEntropyLoss) and loss.ignore_index == 0 and loss.weight is weight
    assert divides_by_class(loss) and divides_by_class(
        to_module(functools.partial(functional.nll_loss, ignore_index=1))
    )
    assert get_reduction(functools.partial(functional.mse_loss, reduction="sum")) == "sum"
    assert to_module(functional.mse_loss) is functional.mse_loss
    assert isinstance(to_module(functional.cross_entropy), nn.CrossEntropyLoss)


def test_a_class_that_is_left_out_counts_on_no_rank() -> None:
    torch.manual_seed(0)
    loss = to_module(functools.partial(functional.cross_entropy, ignore_index=0))
    output, label = torch.randn(6, 3), torch.tensor([0, 0, 1, 2, 1, 0])
    sizes = (2, 4)  # rows of two ranks, on one of which no row counts
    divisors = [[float((part != 0).sum()), float(len(part))] for part in label.split(sizes)]
    total = [sum(column) for column in zip(*divisors, strict=True)]
    model = nn.Linear(1, 1)
    parts = TorchParts(model, torch.optim.SGD(model.parameters(), lr=0.1), [loss], [1.0], [[]])
    weighted = sum(
        rows * compute_joint_loss(parts, [part], [labels], None, rows, lambda _: total).value.item()
        for rows, part, labels in zip(sizes, output.split(sizes), label.split(sizes), strict=True)
    )
    assert weighted / 6 == pytest.approx(functional.cross_entropy(output, label, ignore_index=0).item())


def test_labels_of_which_none_counts() -> None:
    loss = nn.CrossEntropyLoss()
    nothing = numpy.full((2, 3), -100)
    assert not counts_some(loss, [nothing, nothing]) and not counts_some(loss, [])
    assert counts_some(loss, [nothing, nothing * 0])
    assert counts_some(nn.MSELoss(), [])


class Distance(nn.CrossEntropyLoss):
    """A subclass of a torch loss that computes another loss."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(output, 1)
        return (probabilities * (torch.arange(output.shape[1]) - label[:, None]).abs()).sum(1).mean()


class Focal(nn.CrossEntropyLoss):
    """The focal loss, whose class reads torch's loss of each row."""

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        by_row = super().forward(output, label)
        return ((1 - torch.exp(-by_row)) ** 2 * by_row).mean()


class RootOfMean(nn.MSELoss):
    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().forward(output, label).sqrt()


class Doubled(nn.MSELoss):
    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(output, label)


@pytest.mark.parametrize(
    "loss", [Distance(weight=torch.tensor([1.0, 5.0, 9.0])), Distance(ignore_index=0), Distance(), Focal()]
)
def test_a_subclass_with_its_own_forward_is_called_as_it_is(loss: nn.Module) -> None:
    torch.manual_seed(0)
    output, label = torch.randn(6, 3), torch.tensor([0, 0, 1, 2, 1, 0])
    assert not divides_by_class(loss) and get_reduction(loss) == "mean"
    assert joint(loss, [output], [label], None) == pytest.approx(loss(output, label).item())


def test_rows_are_weighted_where_the_loss_is_the_mean_of_its_rows() -> None:
    torch.manual_seed(0)
    output, label, weights = torch.randn(6, 1), torch.randn(6, 1), torch.rand(6)
    right = (2 * (output - label).square().reshape(-1) * weights).mean()
    compute_by_row(Doubled(), output, label)
    assert joint(Doubled(), [output], [label], weights) == pytest.approx(right.item())
    compute_by_row(functools.partial(functional.kl_div, reduction="batchmean"), output.expand(6, 3), torch.rand(6, 3))
    with pytest.raises(DataError, match=r"RootOfMean\(\) is .* for 6 rows, and .* the shape \[6, 1\] with"):
        compute_by_row(RootOfMean(), output, label)
    with pytest.raises(DataError, match=r"returns the shape \[\] with"):
        compute_by_row(Focal(), torch.randn(6, 3), torch.tensor([0, 0, 1, 2, 1, 0]))


class RootByCall(nn.MSELoss):
    def __call__(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().__call__(output, label).sqrt()


class Wrapping(nn.MSELoss):
    @functools.wraps(nn.MSELoss.forward)
    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().forward(output, label).sqrt()


class Delegating(nn.Module):
    """Its reduction is that of a module inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.CrossEntropyLoss()

    @property
    def reduction(self) -> str:
        return self.inside.reduction

    @reduction.setter
    def reduction(self, value: str) -> None:
        self.inside.reduction = value

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.inside(-output, label)


class Negated(nn.CrossEntropyLoss):
    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().forward(-output, label)


def hooked(loss: nn.Module) -> nn.Module:
    loss.register_forward_hook(lambda module, inputs, value: value.mean().sqrt())
    return loss


def replaced() -> nn.Module:
    loss = nn.MSELoss()
    loss.forward = lambda output, label: functional.mse_loss(output, label, reduction=loss.reduction).sqrt()  # type: ignore[method-assign]
    return loss


@pytest.mark.parametrize("loss", [RootByCall(), Wrapping(), hooked(nn.MSELoss()), replaced()])
def test_what_others_compute_from_a_library_s_loss_is_not_taken_for_it(loss: nn.Module) -> None:
    torch.manual_seed(0)
    output, label = torch.randn(6, 1), torch.randn(6, 1)
    assert not is_from_torch(loss)
    assert joint(loss, [output], [label], None) == pytest.approx(loss(output, label).item())
    with pytest.raises(DataError, match="return the loss of each row where"):
        joint(loss, [output], [label], torch.ones(6))


def test_a_hook_on_a_loss_of_weighted_classes_is_called() -> None:
    torch.manual_seed(0)
    output, label = torch.randn(6, 3), torch.tensor([0, 0, 1, 2, 1, 0])
    loss = hooked(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 6.0])))
    assert joint(loss, [output], [label], None) == pytest.approx(loss(output, label).item())


def test_a_mean_over_classes_is_found_in_the_batch_that_shows_it() -> None:
    """The first rows of a sorted DataFrame are of one class, in which the mean over classes is one over rows."""
    torch.manual_seed(0)
    loss, weights = Negated(weight=torch.tensor([1.0, 1.0, 6.0])), torch.ones(6)
    assert joint(loss, [torch.randn(6, 3)], [torch.zeros(6, dtype=torch.long)], weights) > 0
    with pytest.raises(DataError, match=r"Negated\(.*\) is .* for 6 rows, and .* return the loss of each row"):
        joint(loss, [torch.randn(6, 3)], [torch.tensor([0, 0, 1, 2, 1, 0])], weights)


@pytest.mark.parametrize("compiles", [False, True])
def test_the_user_s_loss_stays_as_it_was(compiles: bool) -> None:
    torch.manual_seed(0)
    loss: Any = torch.compile(Delegating(), backend="eager") if compiles else Delegating()
    output, label, weights = torch.randn(6, 3), torch.tensor([0, 0, 1, 2, 1, 0]), torch.rand(6)
    right = (functional.cross_entropy(-output, label, reduction="none") * weights).mean()
    assert joint(loss, [output], [label], weights) == pytest.approx(right.item())
    assert loss.reduction == "mean"
