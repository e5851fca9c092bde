"""The cells of `make matrix`: the extras allow their versions, each gets its day, and results are shown as they are."""

from __future__ import annotations

import datetime
import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from matrix import __main__ as matrix
from matrix import environment
from matrix.cells import CELLS

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", CELLS)
def test_the_extras_allow_the_versions_of_a_cell(name: str) -> None:
    cell = CELLS[name]
    wanted = [Requirement(text) for text in environment.requirements(cell)]
    assert {"pyspark", "torch", "numpy", "pandas", "pyarrow"} <= {each.name for each in wanted}
    for requirement in wanted:
        if requirement.name in cell.pins:
            assert requirement.specifier.contains(cell.pins[requirement.name]), requirement
    assert any("connect" in each.extras for each in wanted) == cell.connect


def test_each_python_of_the_classifiers_has_a_cell() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text))
    assert named == {cell.python for cell in CELLS.values()}


def test_each_cell_has_its_day() -> None:
    first = datetime.date(2026, 1, 1)
    days = [first + datetime.timedelta(days=number) for number in range(len(CELLS))]
    assert {matrix.chosen(["rotating"], day)[0] for day in days} == set(CELLS)
    assert matrix.chosen(["all", "spark-3.4"], first) == [*CELLS, "spark-3.4"]


def test_a_python_that_is_not_there_is_the_cells_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    other = "3.10" if sys.version_info[:2] != (3, 10) else "3.12"
    with pytest.raises(environment.NoPython, match=f"there is no Python {other} here"):
        environment.find_python(other)


def test_the_table_shows_what_was_stored() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from sphinx_reference import tables
    finally:
        sys.path.remove(str(ROOT / "docs"))
    stored = json.loads(matrix.RESULTS.read_text())
    assert set(stored) <= set(CELLS)
    text = tables.matrix_results()
    for name in CELLS:
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        if name not in stored:
            assert "not run" in line
        for check, outcome in stored.get(name, {"checks": {}})["checks"].items():
            assert outcome == "ok" or check in line
