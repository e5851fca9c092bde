"""The tables of faults and demands name tests; each of these must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = (ROOT / "docs/explanation/fault-matrix.md").read_text()
SECURITY = (ROOT / "docs/explanation/security.md").read_text()
_LINE = re.compile(r"^\| (S?\d+) \|.*$", re.MULTILINE)
_TEST = re.compile(r"`((?:tests|native)/[^`]*?)::(\w+)`")


def lines(page: str) -> dict[str, list[tuple[str, str]]]:
    """Number of a line of the table -> the tests that it names, each as path and name."""
    return {match[1]: _TEST.findall(match[0]) for match in _LINE.finditer(page)}


def exists(path: str, name: str) -> bool:
    """Whether the file defines that test, and where it is C++ also calls it."""
    file = ROOT / path
    if not file.exists():
        return False
    if file.suffix == ".py":
        names = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
        return name.startswith("test_") and name in names
    return len(re.findall(rf"\b{name}\b", file.read_text())) > 1


@pytest.mark.parametrize(
    ("page", "numbers"),
    [(FAULTS, [str(number) for number in range(1, 38)]), (SECURITY, [f"S{number}" for number in range(1, 16)])],
    ids=["faults", "security"],
)
def test_every_line_names_tests_that_exist(page: str, numbers: list[str]) -> None:
    table = lines(page)
    assert list(table) == numbers
    assert all(table.values()), [number for number, tests in table.items() if not tests]
    missing = [f"{path}::{name}" for tests in table.values() for path, name in tests if not exists(path, name)]
    assert not missing, "\n" + "\n".join(missing)


def test_a_test_that_is_gone_is_noticed() -> None:
    assert exists("tests/scenarios/test_fault_matrix.py", "test_a_test_that_is_gone_is_noticed")
    assert not exists("tests/scenarios/test_fault_matrix.py", "test_that_is_nowhere")
    assert not exists("tests/test_nowhere.py", "test_a_test_that_is_gone_is_noticed")
    assert not exists("native/tests/transport/frame_test.cc", "ThatIsNowhere")
