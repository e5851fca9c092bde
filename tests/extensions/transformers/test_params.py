"""Checks of the parameters that only the estimator of texts has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_estimator.estimators.checks import check_not_negative
from spark_estimator.extensions.transformers import params
from spark_estimator.extensions.transformers.params import check_lora, check_task


@pytest.mark.parametrize("value", [None, *params.TASKS])
def test_tasks(value: str | None) -> None:
    assert check_task("task", value) == value


@pytest.mark.parametrize("value", ["", "Causal", "regression", 1])
def test_other_tasks(value: Any) -> None:
    with pytest.raises(ValueError, match=r"task must be one of \('causal', .*; got "):
        check_task("task", value)


def test_arguments_of_an_adapter() -> None:
    assert check_lora("lora", None) is None
    value = {"r": 8}
    result = check_lora("lora", value)
    assert result == value and result is not value
    assert check_lora("lora", {}) == {}


@pytest.mark.parametrize("value", ["r=8", 8, [("r", 8)], True])
def test_what_is_no_dict_of_arguments(value: Any) -> None:
    with pytest.raises(TypeError, match=r"lora must be a dict of the arguments of peft\.LoraConfig"):
        check_lora("lora", value)


def test_names_of_arguments_are_texts() -> None:
    with pytest.raises(TypeError, match="lora"):
        check_lora("lora", {8: "r"})


def test_a_config_of_peft_gives_what_differs_from_its_defaults() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["v", "q"], task_type="CAUSAL_LM")
    result = check_lora("lora", config)
    assert result is not None
    assert (result["r"], result["target_modules"], "lora_alpha" in result) == (4, ["q", "v"], False)
    assert json.loads(json.dumps(result)) == result, "it is saved as JSON"
    again = peft.LoraConfig(**result)
    assert again.to_dict() == config.to_dict()
    assert check_lora("lora", peft.LoraConfig()) == {}


@pytest.mark.parametrize(("value", "expected"), [(0, 0.0), (0.0, 0.0), (1, 1.0), (0.5, 0.5), (None, 0.0)])
def test_numbers_that_are_not_negative(value: Any, expected: float) -> None:
    result = check_not_negative("weight_decay", value)
    assert result == expected and type(result) is float


@pytest.mark.parametrize("value", [-1, -0.001, float("inf"), float("nan"), "0", False, True, [0]])
def test_numbers_that_are_negative_or_none(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="weight_decay must be a number, 0 or more; got "):
        check_not_negative("weight_decay", value)


def test_each_parameter_has_one_place_and_a_default_that_passes_its_check() -> None:
    for rows in (params.ESTIMATOR, params.MODEL):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)
        for row in rows:
            row.check(row.name, row.default)
    assert not params.WITHOUT.keys() & {row.name for row in params.ESTIMATOR}
