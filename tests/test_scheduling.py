from __future__ import annotations

from pathlib import Path

import pytest

from tests.scheduling import LONG, PACKAGES_WITH_RANKS, files_of_part, place_of, scope_of

FILES = [Path(f"tests/test_{letter}.py") for letter in "abcdefg"]


@pytest.mark.parametrize("count", [1, 3, 7, 9])
def test_every_file_is_in_one_part(count: int) -> None:
    parts = [files_of_part(f"{number}/{count}", FILES * 2) for number in range(1, count + 1)]
    assert sorted(file for part in parts for file in part) == FILES


@pytest.mark.parametrize("part", ["", "1", "0/3", "4/3", "-1/3", "a/b", "1/0"])
def test_a_part_that_does_not_exist(part: str) -> None:
    with pytest.raises(pytest.UsageError, match="write K/N"):
        files_of_part(part, FILES)


def test_a_package_with_ranks_is_one_scope() -> None:
    assert scope_of("tests/torch/optimizer/test_edges.py::test_a[1]") == "tests/torch/"
    assert scope_of("tests/data/test_scan.py::TestA::test_b") == "tests/data/test_scan.py"


def test_what_takes_long_starts_first() -> None:
    scopes = ["tests/data/test_scan.py", "tests/estimators/test_model.py", "tests/torch/"]
    assert sorted(scopes, key=place_of) == scopes[::-1]


def test_those_packages_exist() -> None:
    root = Path(__file__).parents[1]
    assert all(root.joinpath(package, "conftest.py").exists() for package in PACKAGES_WITH_RANKS)
    assert all(root.joinpath(folder).is_dir() for folder in LONG)
