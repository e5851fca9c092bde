from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scheduling import (
    LONG,
    PACKAGES_WITH_RANKS,
    changed_files,
    files_of_part,
    place_in_limited_run,
    place_of,
    scope_of,
)

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


def test_a_limited_run_begins_with_what_has_changed() -> None:
    scopes = ["tests/torch/", *(f"tests/data/test_{letter}.py" for letter in "abcdefgh")]
    changed = {"tests/data/test_c.py", "spark_estimator/data/b.py"}

    def order(day: int) -> list[str]:
        return sorted(scopes, key=lambda scope: place_in_limited_run(scope, changed, day))

    assert order(1) == order(1) and order(1) != order(2), "an order for each day"
    assert {order(day)[0] for day in range(20)} == {"tests/data/test_c.py"}
    seconds = {order(day)[1] for day in range(200)}
    assert seconds == set(scopes) - {"tests/data/test_c.py"}, "each has its turn"


def test_files_of_the_last_day_s_commits(tmp_path: Path) -> None:
    assert changed_files(tmp_path) == set()

    def commit(name: str, day: int) -> None:
        (tmp_path / name).touch()
        git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        moment = f"2026-01-{day:02}T12:00:00Z"
        environment = {**os.environ, "GIT_AUTHOR_DATE": moment, "GIT_COMMITTER_DATE": moment}
        for arguments in (["add", name], ["commit", "--quiet", "--message", name]):
            subprocess.run([*git, *arguments], check=True, env=environment)

    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    for name, day in (("a", 1), ("b", 2), ("c", 4), ("d", 4)):
        commit(name, day)
    assert changed_files(tmp_path) == {"c", "d"}


@pytest.mark.parametrize(("seconds", "outcome"), [(-1, "skipped"), (600, "passed")])
def test_what_has_not_begun_in_time_is_left_out(seconds: int, outcome: str) -> None:
    tests = f"{__file__}::test_a_part_that_does_not_exist"
    command = [sys.executable, "-m", "pytest", "-rs", f"--begin-until={time.time() + seconds}", tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    root = Path(__file__).parents[1]
    output = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert f" 7 {outcome} " in output
    assert ("[7] tests/conftest.py" in output and "no time was left in this run" in output) == (outcome == "skipped")


def test_those_packages_exist() -> None:
    root = Path(__file__).parents[1]
    assert all(root.joinpath(package, "conftest.py").exists() for package in PACKAGES_WITH_RANKS)
    assert all(root.joinpath(folder).is_dir() for folder in LONG)
