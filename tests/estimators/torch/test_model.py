"""`TorchModel`: its module, which can be replaced and copied."""

from __future__ import annotations

import numpy
import pytest
import torch

from tests.estimators.conftest import line_rows, linear
from tests.estimators.torch_models import expected, model_of


def test_a_module_is_replaced_and_copied() -> None:
    model = model_of(linear())
    copied = model.module()
    with torch.no_grad():
        copied.weight.zero_()  # type: ignore[operator, union-attr]
    assert numpy.allclose(model.predict(line_rows()[0]), expected(linear())), "a copy shares no numbers"
    assert model.setModel(copied.train()) is model and not model.getModel().training
    assert numpy.allclose(model.predict(line_rows()[0]), float(linear().bias[0]))  # type: ignore[index]
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module; got 3"):
        model.setModel(3)  # type: ignore[arg-type]
