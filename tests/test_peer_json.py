"""JSON of other processes: a value, or a ValueError for any other bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_estimator.peer_json import MOST_BYTES, parse_json, parse_object


@pytest.mark.parametrize("value", [None, 1.5, "text", [], [[1], {"a": [2]}], {"a": {"b": [None, True]}}])
def test_values(value: Any) -> None:
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"\xff\xfe\xfd", b"1" * 5000 + b"x", b"[" * 100_000, b'{"a":' * 100_000, b'"' * 3],
    ids=lambda content: repr(content[:10]),
)
def test_bytes_that_are_no_json_are_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(content)


@pytest.mark.parametrize(("opening", "inner", "closing"), [("[", "1", "]"), ('{"a":', "{}", "}"), ("[", "[]", "]")])
def test_nesting_has_a_limit_below_the_interpreter_s(opening: str, inner: str, closing: str) -> None:
    def nested(levels: int) -> str:
        return opening * levels + inner + closing * levels

    allowed = 64 if inner == "1" else 63
    assert parse_json(nested(allowed))
    with pytest.raises(ValueError, match="nested too deeply: more than 64 levels"):
        parse_json(nested(allowed + 1))


def test_size_has_a_limit() -> None:
    assert len(parse_json('"' + "x" * (MOST_BYTES - 2) + '"')) == MOST_BYTES - 2
    with pytest.raises(ValueError, match=f"JSON of {MOST_BYTES + 1} bytes; at most {MOST_BYTES} are allowed"):
        parse_json(b" " * (MOST_BYTES + 1))


def test_objects_only() -> None:
    assert parse_object(b'{"a": 1}') == {"a": 1}
    for other in ("[]", "1", "null", '"text"'):
        with pytest.raises(ValueError, match="where an object belongs"):
            parse_object(other)
