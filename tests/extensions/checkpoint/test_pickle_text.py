"""Pickles that are written without the classes in them."""

from __future__ import annotations

import pickle
import pickletools
from collections import OrderedDict
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from spark_estimator.extensions.checkpoint.pickle_text import Made, Name, make_dict, pickle_value

INTEGERS = [
    sign * 2**bits + step for bits in (0, 7, 8, 15, 31, 32, 63, 64, 200) for sign in (1, -1) for step in (-1, 0, 1)
]


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, "", "text", "\u00e4\u20ac\U0001f600", "\ud800", "line\nbreak", "x" * 70_000),
        *((), [], {}, (1,), [1, [2, (3, None)]], {"a": {"b": [True]}, 1: (2,), (1, 2): "key"}),
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    result = pickle.loads(pickle_value(value))
    assert result == value and type(result) is type(value)


def test_integers_at_the_limits_of_their_bytes() -> None:
    assert pickle.loads(pickle_value(INTEGERS)) == INTEGERS


def test_booleans_are_no_integers() -> None:
    assert [type(value) for value in pickle.loads(pickle_value([True, 1, False, 0]))] == [bool, int, bool, int]


def test_it_is_protocol_2_to_its_end() -> None:
    text = pickle_value({"a": [1, (2, Name("decimal", "Decimal"))]})
    codes = [code for code, _, _ in pickletools.genops(text)]
    assert (codes[0].name, codes[-1].name) == ("PROTO", "STOP") and max(code.proto for code in codes) <= 2


def test_objects_are_made_by_calls_and_with_state() -> None:
    assert pickle.loads(pickle_value(Name("decimal", "Decimal"))) is Decimal
    assert pickle.loads(pickle_value(Made(Name("decimal", "Decimal"), ("1.5",)))) == Decimal("1.5")
    made = Made(Name("types", "SimpleNamespace"), state={"x": 1, "y": [Made(Name("decimal", "Decimal"), ("2",))]})
    assert pickle.loads(pickle_value(made)) == SimpleNamespace(x=1, y=[Decimal(2)])


def test_pairs_whose_keys_have_no_hash_here() -> None:
    pairs = [(Made(Name("decimal", "Decimal"), (text,)), text) for text in ("2", "1")]
    result = pickle.loads(pickle_value(make_dict(pairs)))
    assert list(result.items()) == [(Decimal(2), "2"), (Decimal(1), "1")]
    assert pickle.loads(pickle_value(make_dict([]))) == {}
    assert pickle.loads(pickle_value(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.parametrize("value", [1.5, b"bytes", {1}, object(), [1, {"a": 2.5}]])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="has no pickle here"):
        pickle_value(value)
