"""Holds the names and docstrings of the package's functions to the limits that CONTRIBUTING names."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_layers import PACKAGE, ROOT

# First words of names that end in "ed" and are no participles.
NOT_PARTICIPLES = frozenset(
    {"bed", "embed", "exceed", "feed", "hundred", "need", "proceed", "red", "seed", "shed", "speed"}
)
# Participles that do not end so, apart from those that are also the verb (read, put, run, set, let, cut, split).
_IRREGULAR = """
begun bought broken brought built caught chosen dealt done drawn driven dug eaten fallen felt forgotten fought found
frozen given gone got grown heard held hidden hurt kept known laid led lent lost made meant met paid quit rung said
seen sent shaken shown shut sold sought spent spoken stolen stood struck sworn taken taught thought thrown told
understood woken won worn written
"""
# First words of docstrings that are no verbs; of nouns those that the code had.
_NO_VERBS = """
a about after all an and another any around arrays as at backward before both bytes by classes clients code columns
cores data dicts each entry epochs equal errors every false file first for frameworks fresh from fsspec functions
gigabits gradients hadoop hashable horovod host how if in inputs inside is it its itself keras kind labels later
lightning lines local losses matplotlib meanwhile metrics milliseconds mlflow more new no none not nothing numbers
objects of on one only or other our over own pages paths plain problems programs protocol pyarrow python pythonpath
pytorch rank ranks rates row rows sagemaker same seconds several sockets some spark state stdout tensors text texts tf
that the their these this those threads to today token torch true truncated two types unlike until up uris urls user
validation values variables versions weights what when where whether which while who whose why with within without yes
"""
IRREGULAR, NO_VERBS = (frozenset(words.split()) for words in (_IRREGULAR, _NO_VERBS))


@dataclass(frozen=True)
class Function:
    """A function of the package that is no property: where it is, and its docstring's first word."""

    path: Path
    line: int
    name: str
    has_docstring: bool
    first_word: str


def is_participle_or_of(name: str) -> bool:
    """Return whether a function is named by a participle (`launched`) or as a look-up (`size_of`, `rows_of_page`)."""
    first, *others = name.strip("_").split("_")
    if first in IRREGULAR or (first.endswith("ed") and first not in NOT_PARTICIPLES):
        return True
    return others[-1:] == ["of"] or (others[:1] == ["of"] and first not in ("is", "warn"))


def find_functions(source: str, path: Path) -> Iterator[Function]:
    """Yield the functions of a module, apart from properties and names that Python defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
            if not decorators & {"property", "cached_property", "setter"}:
                docstring = ast.get_docstring(node)
                word = re.match(r"[A-Za-z]*", docstring or "")
                assert word
                yield Function(path, node.lineno, node.name, docstring is not None, word[0].lower())


@functools.cache
def all_functions() -> tuple[Function, ...]:
    """Return the functions of the package, those of the files that changed last first."""
    paths = sorted(PACKAGE.rglob("*.py"), key=lambda path: (-path.stat().st_mtime, path))
    return tuple(function for path in paths for function in find_functions(path.read_text(), path))


def read_limit(row: str) -> float:
    """Return the limit, in percent, that a row of CONTRIBUTING's table of names has."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Limits of names\n")[2].partition("\n## ")[0]
    match = re.search(rf"^\| {re.escape(row)} \| ([\d.]+) % \|$", section, re.MULTILINE)
    assert match, f"CONTRIBUTING.md has no limit of {row!r}"
    return float(match[1])


@pytest.mark.parametrize(
    ("row", "is_counted", "is_bad"),
    [
        ("functions named by a participle or `x_of`", lambda _: True, lambda each: is_participle_or_of(each.name)),
        (
            "docstrings of functions that begin with no verb",
            lambda each: each.has_docstring,
            lambda each: not each.first_word or each.first_word in NO_VERBS,
        ),
    ],
    ids=["names", "docstrings"],
)
def test_share(row: str, is_counted: Callable[[Function], bool], is_bad: Callable[[Function], bool]) -> None:
    counted = [each for each in all_functions() if is_counted(each)]
    bad = [each for each in counted if is_bad(each)]
    share = 100 * len(bad) / len(counted)
    print(f"{row}: {len(bad)} of {len(counted)}, {share:.1f} %; the limit is {read_limit(row)} %")
    lines = [f"{each.path.relative_to(ROOT)}:{each.line}: {each.name}: {each.first_word!r}" for each in bad[:40]]
    assert round(share, 1) <= read_limit(row), "\n".join(["those of the files that changed last:", *lines])


@pytest.mark.parametrize("name", ["launched", "_held", "size_of", "rows_of_page", "taken_rows"])
def test_names_that_count(name: str) -> None:
    assert is_participle_or_of(name)


@pytest.mark.parametrize("name", ["launch", "feed_rows", "is_of_dates", "was_lost", "warn_of_int8", "of"])
def test_names_that_do_not_count(name: str) -> None:
    assert not is_participle_or_of(name)
