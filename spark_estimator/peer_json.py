"""Parses JSON that another process has sent: for any bytes, the result is a value or a ValueError."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MOST_BYTES = 16 << 20
_MOST_LEVELS = 64


def parse_json(content: bytes | bytearray | str) -> Any:
    """Return the value. Raises ValueError: it is no JSON, nested deeper than any message is, or too large."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"JSON of {len(content)} bytes; at most {MOST_BYTES} are allowed")
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(_describe_depth()) from None
    except MemoryError:
        raise ValueError(f"JSON of {len(content)} bytes, for which there is no memory") from None
    # What json still accepts may exceed the interpreter's limit later, where the value is copied or printed.
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for each in level if isinstance(each, (dict, list)) for inner in _list_values(each)]
        if not level:
            return value
    if any(isinstance(each, (dict, list)) for each in level):
        raise ValueError(_describe_depth())
    return value


def parse_object(content: bytes | bytearray | str) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises ValueError: as of `parse_json`, or it is another kind of value."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError(f"JSON of type {type(value).__name__} where an object belongs")
    return value


def _list_values(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _describe_depth() -> str:
    return f"JSON that is nested too deeply: more than {_MOST_LEVELS} levels"
