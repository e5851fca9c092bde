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
                libraries, places = rest.split("=")
                for library in libraries.split():
                    self.only.setdefault(library, []).extend(places.split())
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


# What the core has for extensions: it is changed together with them; its docstring names that.
EXTENSION_POINTS = {"checkpoint.writer", "torch.optimizer.separate_steps"}
# What extensions import of the core beside public names (tests/public_names.txt) and these: modules, by extension. The
# list may only shrink: remove an entry that is no longer needed, and give a name that several extensions need a public
# place.
NOT_PUBLIC = {
    "checkpoint": (
        "checkpoint.orphan_limit checkpoint.random_state checkpoint.restricted "
        "checkpoint.schedule checkpoint.shared_control checkpoint.slot_memory "
        "checkpoint.writer_link collectives.launcher_link env state_machine store.replacement"
    ),
    "jax": "collectives.arrays collectives.context collectives.objects collectives.rendezvous env log",
    "local_steps": (
        "_native collectives.compression.int8 collectives.consistency collectives.context collectives.engine "
        "collectives.handle collectives.ops observe.progress torch.collectives.memory torch.compression.int8 "
        "torch.optimizer.arguments torch.optimizer.classes torch.optimizer.optimizer"
    ),
    "petastorm": (
        "collectives.context collectives.other_launchers.launchers data.columns data.decoding data.fields "
        "data.materialize data.numbers data.parquet data.parquet_file data.rank.joined data.rank.prefetch "
        "data.rank.shares data.row_encoder data.scan"
    ),
    "process_group": (
        "_native collectives.call collectives.connections.connection collectives.context collectives.engine "
        "collectives.handle collectives.ops collectives.other_launchers.addresses collectives.rendezvous "
        "collectives.requests env peer_json reader_thread "
        "security.authentication security.encrypted_stream security.encryption security.handshake_server "
        "torch.collectives.memory"
    ),
    "transformers": (
        "collectives.launcher_link data.columns data.quoting data.row_encoder estimators.checks "
        "estimators.estimator estimators.history estimators.inference.features "
        "estimators.inference.prediction_columns estimators.inference.predictor estimators.keywords "
        "estimators.model estimators.params estimators.persistence.folders estimators.persistence.manifest "
        "estimators.persistence.remote_folders estimators.persistence.subclass_params "
        "estimators.rows.row_plan estimators.rows.sampling estimators.rows.shapes "
        "estimators.torch.callbacks estimators.torch.check estimators.torch.device "
        "estimators.torch.estimator_files estimators.torch.identity estimators.torch.losses "
        "estimators.torch.params estimators.torch.predictor estimators.torch.rank_state estimators.torch.steps.recipe "
        "estimators.torch.training estimators.tracking.signature estimators.train_spec"
    ),
}


def public_names() -> set[str]:
    """Returns the dotted public names, and the modules that offer them."""
    pairs = [line.split() for line in (ROOT / "tests" / "public_names.txt").read_text().splitlines()]
    return {module for module, _ in pairs} | {f"{module}.{name}" for module, name in pairs}


def core_modules_of(source: str, path: Path) -> set[str]:
    """Returns the modules that a file of an extension imports beside public names and extension points.

    They come without the package's name. Those of other extensions are among them.
    """
    module = ".".join(("spark_estimator", *path.with_suffix("").parts)).removesuffix(".__init__")
    names = {name for _, name in imports(source, module, path.name == "__init__.py")}
    own_names = f"spark_estimator.extensions.{path.parts[1]}"
    others = {name for name in names - public_names() if f"{name}.".startswith("spark_estimator.")}
    modules = {name for name in others if not f"{name}.".startswith(f"{own_names}.")}
    is_module = {name: (ROOT / f"{name.replace('.', '/')}.py").exists() for name in modules}
    parents = {name if is_module[name] else name.rpartition(".")[0] for name in modules}
    return {name.removeprefix("spark_estimator.") for name in parents} - EXTENSION_POINTS


def extension_names(source: str, path: Path) -> list[str]:
    """Lists where a file of the core names an extension outside of a table of lazy names.

    Such a table is the dict ``_HOME`` of a module, with the types of its names for type checkers, or that of the
    aliases of other packages.
    """
    tree = ast.parse(source)
    homes = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] in (["_HOME"], ["_EXTENSION"])
    ]
    module = ".".join(("spark_estimator", *path.with_suffix("").parts)).removesuffix(".__init__")
    prefix = "spark_estimator.extensions"
    imported = [
        line
        for line, name in imports(source, module, path.name == "__init__.py")
        if f"{name}.".startswith(f"{prefix}.") and not (homes and line in type_lines(source))
    ]
    in_tables = {id(node) for home in homes for node in ast.walk(home)}
    texts = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and str(node.value).startswith(prefix) and id(node) not in in_tables
    ]
    return [f"{path}:{line} names an extension" for line in sorted([*imported, *texts])]


def test_the_core_loads_extensions_by_tables_of_names_only() -> None:
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    core = [path for path in paths if path.parts[0] != "extensions" and path != Path("compat/aliases.py")]
    assert len(core) > 300
    assert not [line for path in core for line in extension_names((PACKAGE / path).read_text(), path)]


def test_extensions_import_public_names_of_the_core() -> None:
    folders = [path for path in (PACKAGE / "extensions").iterdir() if (path / "__init__.py").exists()]
    used = {
        (folder.name, module)
        for folder in folders
        for path in folder.rglob("*.py")
        for module in core_modules_of(path.read_text(), path.relative_to(PACKAGE))
    }
    assert not {pair for pair in used if pair[1].startswith("extensions")}, "an extension imports no other"
    listed = {(name, module) for name, modules in NOT_PUBLIC.items() for module in modules.split()}
    assert not sorted(used - listed), "not public"
    assert not sorted(listed - used), "no longer needed: remove them from the list"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("from spark_estimator.errors import DataError\nimport spark_estimator.torch as hvd", set()),
        ("from spark_estimator.extensions.checkpoint import folders\nfrom . import folders", set()),
        ("def f():\n    from spark_estimator.data.fields import Field, Array", {"data.fields"}),
        ("from spark_estimator.estimators import checks", {"estimators.checks"}),
        ("from spark_estimator.checkpoint.writer import Writer", set()),
        ("from spark_estimator.errors import without_links", {"errors"}),
        ("from spark_estimator.extensions.local_steps import DiLoCo", {"extensions.local_steps"}),
    ],
)
def test_what_counts_as_public(source: str, modules: set[str]) -> None:
    assert core_modules_of(source, Path("extensions/checkpoint/layout.py")) == modules


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('_HOME = {"A": "spark_estimator.extensions.a"}', []),
        ('if TYPE_CHECKING:\n    from spark_estimator.extensions.a import A\n_HOME = {"A": "..."}', []),
        ("if TYPE_CHECKING:\n    from spark_estimator.extensions.a import A", [2]),
        ('_HOME = {"A": "..."}\ndef f():\n    from spark_estimator.extensions import a', [3]),
        ("from .extensions import a", [1]),
        ('import_module("spark_estimator.extensions.a")', [1]),
        ('import_module(f"spark_estimator.extensions.{name}")', [1]),
    ],
)
def test_what_names_an_extension(source: str, lines: list[int]) -> None:
    assert extension_names(source, Path("runner.py")) == [f"runner.py:{line} names an extension" for line in lines]


def test_packages_with_lazy_names_load_no_extension() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys, spark_estimator.torch, spark_estimator.checkpoint, spark_estimator.data\n"
        "print([name for name in sys.modules if name.startswith('spark_estimator.extensions')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


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
