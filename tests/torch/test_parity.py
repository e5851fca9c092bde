"""Compares exported names, with their arguments and defaults, with Horovod's in `horovod_surface.txt`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import spark_estimator.torch as hvd

SURFACE = Path(__file__).with_name("horovod_surface.txt")
_LINE = re.compile(r"(core|common|rare|obsolete)\s+([\w.]+)(?:\((.*)\)| = (.+))?$")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Item(NamedTuple):
    """One line: `arguments` and `value` are Python source, or None where the line has none."""

    part: str
    use: str
    name: str
    arguments: str | None
    value: str | None

    def __str__(self) -> str:
        return self.name if self.part != "a wrapped optimizer" else f"optimizer.{self.name}"


def items() -> Iterator[Item]:
    part = ""
    for line in SURFACE.read_text().splitlines():
        if line.startswith("["):
            part = line.strip("[]")
        elif line and not line.startswith("#"):
            match = _LINE.match(line)
            assert match, f"{SURFACE.name}: cannot read {line!r}"
            yield Item(part, *match.groups())


def difference(item: Item) -> str:
    """How what is served differs from the item; '' for not at all."""
    try:
        served = functools.reduce(_attribute, item.name.split("."), _root(item.part))
    except AttributeError as error:
        return f"absent: {error}"
    if item.value is not None and served != eval(item.value, vars(hvd).copy()):
        return f"is {served!r}"
    return "" if item.arguments is None else _signature_difference(item.arguments, inspect.signature(served))


def table() -> str:
    """The surface in Markdown, with what is served of it."""
    rows = ["| part | use | item | served |", "|---|---|---|---|"]
    for item in items():
        rows.append(f"| {item.part} | {item.use} | `{item}` | {difference(item) or 'yes'} |")
    return "\n".join(rows)


def _root(part: str) -> object:
    if part != "a wrapped optimizer":
        return hvd
    hvd.init()
    try:
        return hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1))
    finally:
        hvd.shutdown()


def _attribute(owner: object, name: str) -> object:
    if owner is hvd and importlib.util.find_spec(f"spark_estimator.torch.{name}"):
        # An attribute once it has been imported, as its users do.
        return importlib.import_module(f"spark_estimator.torch.{name}")
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name) if name == "forward" else getattr(owner, name)
    return getattr(owner, name)


def _signature_difference(arguments: str, served: inspect.Signature) -> str:
    # Methods of an instance are bound: they have no `self`.
    theirs = list(inspect.signature(eval(f"lambda {arguments}: None", vars(hvd).copy())).parameters.values())
    ours = list(served.parameters.values())
    if theirs and theirs[0].name == "self" and (not ours or ours[0].name != "self"):
        theirs = theirs[1:]
    takes_any = {parameter.kind for parameter in ours} >= {
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    }
    for position, expected in enumerate(theirs):
        local = ours[position] if position < len(ours) else None
        if takes_any and (local is None or local.kind not in _POSITIONAL):
            return ""
        if local is None or (local.name, local.kind) != (expected.name, expected.kind):
            return f"argument {position} is `{local}`, not `{expected}`"
        if expected.default is expected.empty:
            continue  # an argument that is optional here is required there
        if local.default is not expected.default and local.default != expected.default:
            return f"`{local.name}` is {local.default!r} by default, not {expected.default!r}"
    extra = [each for each in ours[len(theirs) :] if each.default is each.empty and each.kind in _POSITIONAL]
    return f"needs another argument: `{extra[0]}`" if extra else ""


@pytest.mark.parametrize("item", list(items()), ids=str)
def test_it_is_served(item: Item) -> None:
    assert difference(item) == ""


def test_everything_that_is_exported_is_in_the_file() -> None:
    additions = {"DiLoCo", "LocalSGD"}  # not in Horovod
    assert set(hvd.__all__) - {item.name.partition(".")[0] for item in items()} == additions


def test_a_difference_is_seen() -> None:
    def of(text: str) -> str:
        match = _LINE.match(text)
        assert match
        return difference(Item("the collectives", *match.groups()))

    assert of("core allgather(tensor, name=None, process_set=global_process_set)") == ""
    assert of("core allgather(tensor, process_set=global_process_set, name=None)").startswith("argument 1 is `name")
    assert of("core allgather(tensor, name='x')") == "`name` is None by default, not 'x'"
    assert of("core allgather()").startswith("needs another argument: `tensor")
    assert of("core allgather(tensor, name=None, process_set=global_process_set, axis=0)").startswith("argument 3 is")
    assert of("core gather(tensor)").startswith("absent")
    assert of("core Average = 1").startswith("is ")
    assert "| `allreduce` | yes |" in table()


if __name__ == "__main__":
    print(table())
