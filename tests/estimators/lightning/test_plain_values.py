"""Values that mean the same in another process, and those that are left out."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from spark_estimator.estimators.lightning import plain_values
from spark_estimator.estimators.lightning.plain_values import PlainValues, dumped


def again(value: Any) -> Any:
    return pickle.loads(dumped(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1.5,
        "text",
        b"bytes",
        [1, (2, {3})],
        {"a": {"b": [1]}},
        Path("/a"),
        numpy.float32(2),
        torch.float16,
    ],
)
def test_plain_values_are_the_same_again(value: Any) -> None:
    assert again(value) == value and type(again(value)) is type(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_are_the_same_again_without_their_graphs(dtype: torch.dtype) -> None:
    for value in (torch.arange(6).reshape(2, 3).to(dtype).T, torch.ones((), dtype=dtype), torch.empty(0, 3).to(dtype)):
        result = again([value])[0]
        assert torch.equal(result, value) and result.dtype == dtype and result.shape == value.shape
    loss = torch.ones(2, requires_grad=True).sum()
    assert again(loss) == 2 and not again(loss).requires_grad
    assert again(collections.defaultdict(list, a=[loss]))["a"] == [2]


@pytest.mark.parametrize(
    "value", [object(), lambda: 1, torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(1)), [{1: open}]]
)
def test_other_objects_are_refused_or_found_by_name(value: Any) -> None:
    if value == [{1: open}]:
        assert again(value) == value
        return
    with pytest.raises((TypeError, pickle.PicklingError, AttributeError)):
        dumped(value)


def test_a_value_that_is_not_plain_is_left_out_from_then_on() -> None:
    values = PlainValues("a module")
    assert pickle.loads(values.packed({"a": 1, "b": object()})) == {"a": 1}
    assert pickle.loads(values.packed({"a": 2, "b": 3, "c": 4})) == {"a": 2, "c": 4}


def test_large_values_are_left_out_with_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(plain_values, "_MOST_BYTES", 1000)
    values = PlainValues("a module")
    with caplog.at_level("WARNING"):
        content = values.packed({"a": 1, "large": b"x" * 2000, "b": 2})
    assert pickle.loads(content) == {"a": 1, "b": 2}
    assert "large of a module: more than 1000 bytes" in caplog.text
    caplog.clear()
    assert pickle.loads(values.packed({"a": 1, "large": 0})) == {"a": 1}
    assert not caplog.text
