"""Holds the package to the limits of size that CONTRIBUTING names, and finds folders that import each other."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.test_layers import PACKAGE, ROOT, imports, type_lines

_MOST_ATTRIBUTES = 15
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def find_sources() -> dict[str, Path]:
    """Return each module's path below the package, by its path as text, such as ``torch/rates.py``."""
    return {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}


def count_code_lines(source: str) -> int:
    """Return the number of lines that are not blank, a comment, or part of a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def find_part(path: str) -> str:
    """Return the part of the package that a module counts to: the core, or an extension."""
    folders = path.split("/")
    return f"`extensions/{folders[1]}`" if folders[0] == "extensions" and len(folders) > 2 else "the core"


def count_attributes(node: ast.ClassDef) -> int:
    """Return the number of attributes that the methods of a class assign to `self`, and of a dataclass's fields.

    Fields of frozen dataclasses are values that others pass on, and not counted.
    """
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    is_counted = "dataclass" in decorators and "frozen=True" not in decorators
    fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)] if is_counted else []
    names = {field.id for field in fields if isinstance(field, ast.Name)}
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for each in [each for method in methods for each in ast.walk(method) if isinstance(each, ast.Attribute)]:
        if isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self":
            names.add(each.attr)
    return len(names)


def read_limits() -> dict[str, int]:
    """Return the rows of CONTRIBUTING's table of limits: what is counted, and its limit."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(
        r"^\| ([^|]+?) \| ([\d,]+) \|$", text.partition("## Limits of size")[2].partition("\n## ")[0], re.M
    )
    return {name: int(limit.replace(",", "")) for name, limit in rows}


def find_circles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the groups of nodes that reach each other, each group sorted (Tarjan 1972, by reachability)."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), set()) - seen:
                seen.add(target)
                waiting.append(target)
        reach[start] = seen
    circles = {tuple(sorted(b for b in reach[a] if a in reach.get(b, set()))) for a in graph if a in reach[a]}
    return sorted(circle for circle in circles if len(circle) > 1)


def find_imports() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield (importing, imported) modules of the package, as parts of their paths."""
    paths = find_sources()
    names = {
        ".".join(("spark_estimator", *Path(key).with_suffix("").parts)).removesuffix(".__init__"): key for key in paths
    }
    for name, key in names.items():
        source = paths[key].read_text()
        skipped = type_lines(source)
        for line, full in imports(source, name, key.endswith("__init__.py")):
            target = full if full in names else full.rpartition(".")[0]
            if line not in skipped and target in names and not key.endswith("__init__.py"):
                yield tuple(name.split(".")[1:]), tuple(target.split(".")[1:])


def find_includes() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield (including, included) files of the engine, as parts of their paths."""
    for path in sorted((ROOT / "native").rglob("*")):
        if path.suffix in {".h", ".cc"} and not {"tests", "fuzz", "benchmarks"} & set(path.parts):
            for included in re.findall(r'^#include "(.+)"', path.read_text(), re.M):
                yield path.relative_to(ROOT / "native").parts, Path(included).parts


def find_folder_circles(uses: Iterable[tuple[tuple[str, ...], tuple[str, ...]]]) -> Iterator[tuple[str, ...]]:
    """Yield groups of siblings, files or folders, that use each other; ``uses`` are pairs of files."""
    graphs: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for mine, theirs in uses:
        depth = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        if depth is not None:
            graph = graphs.setdefault(mine[:depth], {})
            graph.setdefault(mine[depth], set()).add(theirs[depth])
    for parent, graph in sorted(graphs.items()):
        for circle in find_circles(graph):
            yield tuple("/".join((*parent, part)) for part in circle)


def test_the_package_is_within_its_limits() -> None:
    limits = read_limits()
    sources = {key: path.read_text() for key, path in find_sources().items()}
    sizes = {"lines of Python": sum(source.count("\n") for source in sources.values())}
    code = {key: count_code_lines(source) for key, source in sources.items()}
    sizes["lines of code"] = sum(code.values())
    for key, lines in code.items():
        row = f"lines of code in {find_part(key)}"
        sizes[row] = sizes.get(row, 0) + lines
    sizes["modules"] = len(sources)
    print(sizes)
    assert limits.keys() == sizes.keys()
    assert not {name: (size, limits[name]) for name, size in sizes.items() if size > limits[name]}


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert find_circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]
    assert not list(find_folder_circles(find_imports())), "folders of one parent, directly or by way of others"


def test_no_folders_of_the_engine_include_each_other_in_a_circle() -> None:
    includes = set(find_includes())
    assert (("engine", "rounds", "rounds.h"), ("engine", "wire", "proposal.h")) in includes
    assert not list(find_folder_circles(includes))


def test_no_class_has_more_than_15_instance_attributes() -> None:
    counts = {
        f"{key}:{node.name}": count_attributes(node)
        for key, path in find_sources().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert not {name: count for name, count in counts.items() if count > _MOST_ATTRIBUTES}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("class A:\n def f(self):\n  self.a = self.b = 1\n  self.c, x.d = 1, 2\n def g(self):\n  self.a += self.e", 3),
        ("@dataclass\nclass A:\n a: int\n b: int = 0\n def f(self):\n  self.c: int = 1", 3),
        ("@dataclass(frozen=True)\nclass A:\n a: int\n b: int", 0),
        ("class A:\n a: int = 1\n @classmethod\n def f(cls):\n  cls.b = 1\n @staticmethod\n def g(): pass", 0),
    ],
)
def test_what_counts_as_an_attribute(source: str, count: int) -> None:
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef) and count_attributes(node) == count


def test_what_counts_as_code() -> None:
    source = '"""Module."""\n\n# reason\ndef f():\n    """Doc\n    string."""\n    return (1,\n        2)\n'
    assert count_code_lines(source) == 3


@pytest.mark.parametrize("page", ["spark_estimator/README.md", "native/README.md"])
def test_a_contributors_page_can_be_read_in_a_sitting(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= 250
