"""Modules that PyTorch does not let be copied or pickled."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune, weight_norm

from spark_estimator import TorchEstimator, TorchModel
from spark_estimator.estimators.torch.predictor import dumped, opened
from spark_estimator.estimators.torch.sending import prepare_to_send
from tests.estimators.conftest import ROWS, line_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Doubled(nn.Module):
    """A parametrization of the user's."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value


def parametrized() -> nn.Module:
    """With each of PyTorch's parametrizations, and two in one module."""
    torch.manual_seed(4)
    spectral = parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=3)
    last = parametrize.register_parametrization(parametrizations.weight_norm(nn.Linear(3, 1)), "bias", Doubled())
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 4)), spectral, last)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    "make",
    [
        parametrized,
        lambda: weight_norm(nn.Linear(3, 1)),
        lambda: prune.l1_unstructured(nn.Linear(3, 1), "weight", 0.4),
    ],
)
def test_a_copy_computes_and_learns_as_the_module(make: Callable[[], nn.Module]) -> None:
    net, rows = make().eval(), torch.from_numpy(line_rows()[0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(rows)
    prepare_to_send(net)
    there, its_optimizer = opened(io.BytesIO(dumped((net, optimizer))))
    again, _ = opened(io.BytesIO(dumped((there, its_optimizer))))
    assert torch.equal(there(rows), net(rows)) and torch.equal(again(rows), net(rows))
    for module, stepped in ((net, optimizer), (there, its_optimizer)):
        stepped.zero_grad()
        module(rows).square().mean().backward()
        stepped.step()
    assert torch.allclose(there(rows), net(rows)) and not torch.equal(there(rows), again(rows))
    prepare_to_send(net)
    assert torch.equal(copy.deepcopy(net)(rows), net(rows))


@pytest.mark.timeout(240)
def test_a_parametrized_module_is_trained_as_in_one_process(
    line: DataFrame, estimator: Callable[..., TorchEstimator], tmp_path: Path
) -> None:
    net = parametrizations.weight_norm(nn.Linear(3, 1))
    alone = copy.deepcopy(net)
    model = estimator(model=net, batch_size=ROWS, epochs=3, shuffle=False).fit(line)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05 * 2)  # of two ranks
    features, labels = (torch.from_numpy(each) for each in line_rows())
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(features).reshape(-1), labels).backward()
        optimizer.step()
    weight: Any = model.getModel().weight
    assert torch.allclose(weight, alone.weight, rtol=1e-4, atol=1e-6)
    row = model.transform(line.select("features")).first()
    expected = model.predict([row.features])
    assert row.y__output == pytest.approx(float(expected.reshape(-1)[0]), rel=1e-5)
    model.save(str(tmp_path / "model"))
    for way in ({"model": net}, {"trust": True}):
        assert TorchModel.load(str(tmp_path / "model"), **way).predict([row.features]) == pytest.approx(expected)


def test_an_estimator_of_a_parametrized_module_is_saved(
    estimator: Callable[..., TorchEstimator], tmp_path: Path
) -> None:
    net, rows = parametrized().eval(), torch.from_numpy(line_rows()[0])
    estimator(model=net).save(str(tmp_path / "estimator"))
    again: Any = TorchEstimator.load(str(tmp_path / "estimator"), trust=True).getModel()
    assert torch.equal(again.eval()(rows), net(rows))


def test_a_script_is_refused(estimator: Callable[..., TorchEstimator], line: DataFrame) -> None:
    inner = torch.jit.script(nn.Linear(3, 1))
    for net, words in ((inner, "model is a Scrip"), (nn.Sequential(inner), "the model's 0 is a Script")):
        with pytest.raises(ValueError, match=rf"{words}.*Give the torch\.nn\.Module .*torch\.jit\.script\(fitted\.get"):
            estimator(model=net).fit(line)
