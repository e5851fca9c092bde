"""The judge of the tests: a small tree with a test that sees a change, one that does not, and some that say nothing."""

from __future__ import annotations

import subprocess

import pytest

from tests.mutations.mutation import Mutation
from tests.mutations.tree import Tree
from tests.mutations.verdicts import Verdict, verdict

CODE = "def double(x):\n    return 2 * x\n\n\nCOLOUR = 'red'\n"
TESTS = """
import time
import pytest
from spark_estimator import COLOUR, double

@pytest.fixture
def fixed():
    assert double(1) == 2

@pytest.mark.parametrize("x", [0, 2])
def test_sees(x):
    assert double(x) == x + x

def test_sees_nothing():
    assert double(0) == 0

def test_sees_in_its_fixture(fixed):
    pass

@pytest.mark.timeout(1)
def test_waits():
    while double(1) != 2:
        time.sleep(0.01)

def test_fails_anyway():
    assert False

@pytest.mark.skip
def test_is_skipped():
    pass
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    source = tmp_path_factory.mktemp("source")
    files = {
        "spark_estimator/__init__.py": CODE,
        "tests/ranks.py": "",
        "tests/test_it.py": TESTS,
        "ignored": "",
        "gone": "",
    }
    for name, text in {**files, ".gitignore": "ignored\n", "pyproject.toml": "[tool.pytest.ini_options]\n"}.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(source)], check=True)
    tree = Tree(source, tmp_path_factory.mktemp("copy"))
    tree.update()
    (source / "gone").unlink()
    tree.update()
    return tree


def mutation(*names: str, before: str = "2 * x", after: str = "3 * x", hangs: bool = False) -> Mutation:
    tests = tuple(f"tests/test_it.py::{name}" for name in names)
    return Mutation("1", "doubles", "spark_estimator/__init__.py", before, after, tests, hangs, seconds=60)


def test_the_copy_has_what_git_knows(tree: Tree) -> None:
    assert sorted(path.name for path in tree.root.iterdir()) == [
        ".gitignore",
        "pyproject.toml",
        "spark_estimator",
        "tests",
    ]


@pytest.mark.parametrize(
    ("change", "result", "why"),
    [
        (mutation("test_sees"), Verdict.CAUGHT, ""),
        (mutation("test_sees[2]"), Verdict.CAUGHT, ""),
        (mutation("test_sees[0]"), Verdict.SURVIVED, "test_sees[0] passes"),
        (mutation("test_sees", "test_sees_nothing"), Verdict.SURVIVED, "test_sees_nothing passes"),
        (mutation("test_sees_in_its_fixture"), Verdict.UNKNOWN, "test_sees_in_its_fixture gives no result"),
        (mutation("test_waits"), Verdict.UNKNOWN, "test_waits runs out of its time"),
        (mutation("test_waits", hangs=True), Verdict.CAUGHT, ""),
        (mutation("test_fails_anyway"), Verdict.UNKNOWN, "test_fails_anyway fails without it"),
        (mutation("test_is_nowhere"), Verdict.UNKNOWN, "test_is_nowhere gives no result without it"),
        (mutation("test_is_skipped"), Verdict.SKIPPED, "skipped here"),
        (mutation("test_is_skipped", "test_sees"), Verdict.CAUGHT, ""),
        (mutation("test_sees", after="2 *"), Verdict.UNKNOWN, "test_sees gives no result"),
    ],
    ids=lambda value: "-".join(test.partition("::")[2] for test in value.tests) if isinstance(value, Mutation) else "",
)
def test_what_a_mutation_shows(tree: Tree, change: Mutation, result: Verdict, why: str) -> None:
    shown, reason = verdict(tree, change)
    assert (shown, why in reason) == (result, True), reason
    assert bool(reason) == bool(why)
    assert (tree.root / change.file).read_text() == CODE


def test_a_text_that_is_not_there_once_is_refused(tree: Tree) -> None:
    for before in ("4 * x", "x"):
        with pytest.raises(ValueError, match=r"row 1: .* times in spark_estimator/__init__\.py: expected once"):
            mutation("test_sees", before=before).applied(CODE)
