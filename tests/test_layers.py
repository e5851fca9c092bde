"""Holds every import of the package to the table in ``spark_estimator/README.md``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "spark_estimator"


class Table:
    """The block that begins with ``layers:``: the level of each part, pairs allowed within one, who may use what."""

    def __init__(self, text: str) -> None:
        block = re.search(r"^```\w*\nlayers:\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert block, "spark_estimator/README.md has no fenced block that begins with 'layers:'"
        self.level: dict[str, int] = {}
        self.within: set[tuple[str, str]] = set()
        self.only: dict[str, list[str]] = {}
        for line in filter(None, map(str.strip, block[1].splitlines())):
            key, _, rest = line.partition(":")
            if re.fullmatch(r"L\d+", key):
                self.level |= {part: int(key[1:]) for part in rest.split()}
            elif key == "within":
                self.within |= {(a, b) for a, b in (pair.split("->") for pair in rest.split())}
            elif key == "only":
                library, places = rest.split("=")
                self.only[library.strip()] = places.split()
            else:
                raise AssertionError(f"the table's line {line!r} is neither a level, nor 'within:', nor 'only:'")


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yields (line, dotted name) for each import statement, also those inside functions.

    ``from a import b`` yields ``a.b``, because ``b`` may be a module; a relative import is made absolute.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            start = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def offences(source: str, path: Path, table: Table) -> list[str]:
    """Says what one file imports against the table; ``path`` is relative to the package."""
    part = path.parts[0].removesuffix(".py")
    if part not in table.level:
        return [f"{path}: {part!r} stands on no level of the table"]
    found = []
    module = ".".join(("spark_estimator", *path.with_suffix("").parts)).removesuffix(".__init__")
    for line, name in imports(source, module, path.name == "__init__.py"):
        names = name.split(".")
        if names[0] == "spark_estimator":
            # What is no part is a public name of the package itself; __version__ and its like are at home everywhere.
            target = names[1] if len(names) > 1 else "__init__"
            if target == part or (target not in table.level and target.startswith("__")):
                continue
            target = target if target in table.level else "__init__"
            if table.level[target] >= table.level[part] and (part, target) not in table.within:
                found.append(f"{path}:{line} (L{table.level[part]}) imports {name} (L{table.level[target]})")
        elif names[0] in table.only:
            places = table.only[names[0]]
            if not any(path == Path(place) or Path(place) in path.parents for place in places):
                found.append(f"{path}:{line} imports {names[0]}, which only {', '.join(places)} may")
    return found


@pytest.fixture(scope="module")
def table() -> Table:
    return Table((PACKAGE / "README.md").read_text())


def test_imports_go_down(table: Table) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "shims" not in path.parts]
    assert files
    found = [offence for path in files for offence in offences(path.read_text(), path.relative_to(PACKAGE), table)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source", "offence"),
    [
        ("env.py", "def f():\n    import spark_estimator.launch", "env.py:2 (L0) imports spark_estimator.launch"),
        ("launch/cli/main.py", "from ...data import schema", "launch/cli/main.py:1 (L2) imports spark_estimator.data"),
        ("launch/__init__.py", "from .. import runner", "launch/__init__.py:1 (L2) imports spark_estimator.runner"),
        ("torch/collectives/ops.py", "import pyspark.sql", "torch/collectives/ops.py:1 imports pyspark"),
        ("collectives/ops.py", "import torch", "collectives/ops.py:1 imports torch"),
        ("helpers.py", "", "helpers.py: 'helpers' stands on no level"),
        ("launch/spark/entry.py", "from spark_estimator import HorovodRunner", "launch/spark/entry.py:1 (L2) imports"),
        ("demo.py", "from spark_estimator import HorovodRunner", None),
        ("elastic/run.py", "from spark_estimator.collectives import context", None),
        ("launch/spark/barrier_job.py", "from pyspark.sql import SparkSession\nfrom .. import local", None),
        ("log.py", "from spark_estimator import __version__", None),
    ],
)
def test_the_rule_itself(table: Table, path: str, source: str, offence: str | None) -> None:
    found = offences(source, Path(path), table)
    assert (offence is None) == (not found), found
    assert offence is None or found[0].startswith(offence)


def test_names_that_say_nothing_are_not_used() -> None:
    vague = {"util", "utils", "common", "helper", "helpers", "manager", "service"}
    assert not [path for path in PACKAGE.rglob("*") if path.stem in vague]


# Horovod's own names, which several of its modules have, too.
PUBLIC_TWICE = {
    "BF16Compressor",
    "Compression",
    "FP16Compressor",
    "HorovodStrategy",
    "NoneCompressor",
    "TorchEstimator",
    "TorchModel",
}


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in ("benchmarks", "examples"):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    shared = {name: files for name, files in homes.items() if len(files) > 1 and name not in PUBLIC_TWICE}
    assert not shared


def test_no_folder_has_more_than_25_modules() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert not [folder for folder in folders if len(list(folder.glob("*.py"))) - 1 > 25]
