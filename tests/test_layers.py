"""Holds every import of the package to the table in ``spark_estimator/README.md``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
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
        self.types: set[tuple[str, str]] = set()
        self.only: dict[str, list[str]] = {}
        for line in filter(None, map(str.strip, block[1].splitlines())):
            key, _, rest = line.partition(":")
            if re.fullmatch(r"L\d+", key):
                self.level |= {part: int(key[1:]) for part in rest.split()}
            elif key == "within":
                self.within |= {(a, b) for a, b in (pair.split("->") for pair in rest.split())}
            elif key == "types":
                self.types |= {(a, b) for a, b in (pair.split("->") for pair in rest.split())}
            elif key == "only":
                library, places = rest.split("=")
                self.only.setdefault(library.strip(), []).extend(places.split())
            else:
                raise AssertionError(f"the table's line {line!r} is none of a level, 'within:', 'types:' and 'only:'")


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


def type_lines(source: str) -> set[int]:
    """The lines inside of ``if TYPE_CHECKING:``, which no program runs."""
    blocks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {child.lineno for block in blocks for child in block.body}


def offences(source: str, path: Path, table: Table) -> list[str]:
    """Lists the imports of a file that the table forbids; ``path`` is relative to the package."""
    part = path.parts[0].removesuffix(".py")
    if part not in table.level:
        return [f"{path}: {part!r} has no level in the table"]
    result = []
    module = ".".join(("spark_estimator", *path.with_suffix("").parts)).removesuffix(".__init__")
    for line, name in imports(source, module, path.name == "__init__.py"):
        names = name.split(".")
        if names[0] == "spark_estimator":
            # A name that is no part is a public name of the package; every part may import __version__ and the like.
            target = names[1] if len(names) > 1 else "__init__"
            if target == part or (target not in table.level and target.startswith("__")):
                continue
            target = target if target in table.level else "__init__"
            for_types = (part, target) in table.types and line in type_lines(source)
            if table.level[target] >= table.level[part] and (part, target) not in table.within and not for_types:
                result.append(f"{path}:{line} (L{table.level[part]}) imports {name} (L{table.level[target]})")
        elif names[0] in table.only:
            allowed = table.only[names[0]]
            if not any(path == Path(folder) or Path(folder) in path.parents for folder in allowed):
                result.append(f"{path}:{line} imports {names[0]}, which only {', '.join(allowed)} may")
    return result


@pytest.fixture(scope="module")
def table() -> Table:
    return Table((PACKAGE / "README.md").read_text())


def test_imports_go_down(table: Table) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if "shims" not in path.parts]
    assert files
    violations = [offence for path in files for offence in offences(path.read_text(), path.relative_to(PACKAGE), table)]
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(
    ("path", "source", "offence"),
    [
        ("env.py", "def f():\n    import spark_estimator.launch", "env.py:2 (L0) imports spark_estimator.launch"),
        ("launch/cli/main.py", "from ...data import schema", "launch/cli/main.py:1 (L2) imports spark_estimator.data"),
        ("launch/__init__.py", "from .. import runner", "launch/__init__.py:1 (L2) imports spark_estimator.runner"),
        ("torch/collectives/ops.py", "import pyspark.sql", "torch/collectives/ops.py:1 imports pyspark"),
        ("collectives/ops.py", "import torch", "collectives/ops.py:1 imports torch"),
        ("helpers.py", "", "helpers.py: 'helpers' has no level"),
        ("launch/spark/entry.py", "from spark_estimator import HorovodRunner", "launch/spark/entry.py:1 (L2) imports"),
        ("demo.py", "from spark_estimator import HorovodRunner", None),
        ("elastic/run.py", "from spark_estimator.collectives import context", None),
        ("launch/spark/stage_job.py", "from pyspark.sql import SparkSession\nfrom .. import local", None),
        ("log.py", "from spark_estimator import __version__", None),
    ],
)
def test_the_rule_itself(table: Table, path: str, source: str, offence: str | None) -> None:
    violations = offences(source, Path(path), table)
    assert (offence is None) == (not violations), violations
    assert offence is None or violations[0].startswith(offence)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not inside functions; for type checking they may."""
    paths = [path for path in PACKAGE.rglob("*.py") if "shims" not in path.parts]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        source = path.read_text()
        skipped = type_lines(source)
        imported = (full for line, full in imports(source, name, path.stem == "__init__") if line not in skipped)
        graph[name] = {full if full in names else full.rpartition(".")[0] for full in imported} & names.keys() - {name}
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()  # CycleError lists the modules of a circle


def test_names_that_say_nothing_are_not_used() -> None:
    vague = {"util", "utils", "common", "helper", "helpers", "manager", "service"}
    assert not [path for path in PACKAGE.rglob("*") if path.stem in vague]


# Horovod's own names, which several of its modules have, too.
PUBLIC_TWICE = {
    "AddOnStrategy",
    "BF16Compressor",
    "BestModelCheckpoint",  # of horovod.keras and of horovod.tensorflow.keras
    "Compression",
    "FP16Compressor",
    "HorovodStrategy",
    "PetastormDataModule",  # of horovod.spark.torch and of horovod.spark.keras
    "TorchEstimator",
    "TorchModel",
}


def test_no_two_public_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    shared = {name: files for name, files in homes.items() if len(files) > 1 and name not in PUBLIC_TWICE}
    assert not shared


def test_no_folder_has_more_than_25_modules() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert not [folder for folder in folders if len(list(folder.glob("*.py"))) - 1 > 25]


def uses_select(source: str) -> bool:
    """Whether a file uses ``select.select``, which raises ValueError for file descriptors of 1024 and above."""
    nodes = list(ast.walk(ast.parse(source)))
    attributes = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    imported = {name for _, name in imports(source, "", False)}
    return bool({"select.select", "select.*"} & (attributes | imported))


def test_no_module_is_limited_to_the_first_1024_file_descriptors() -> None:
    assert uses_select("select.select([], [], [])") and uses_select("from select import select")
    assert not uses_select("selectors.DefaultSelector().select()\nselect.poll()")
    assert not [path for path in PACKAGE.rglob("*.py") if uses_select(path.read_text())]


@pytest.mark.parametrize(
    "folder", ["estimators.torch", "estimators.lightning", "extensions.transformers", "estimators.keras"]
)
def test_a_rank_of_an_estimator_imports_no_pyspark(folder: str) -> None:
    """It would take a rank about half a second: pyspark.ml imports pandas."""
    framework = folder.rpartition(".")[2]
    pytest.importorskip({"torch": "torch", "keras": "tensorflow"}.get(framework, framework))
    code = f"import sys, spark_estimator.{folder}.training; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines()[-1] == "False"
