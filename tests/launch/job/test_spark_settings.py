"""The settings of a Spark session that are this package's own: one table has all that the code reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_estimator.launch.job import spark_settings
from spark_estimator.launch.job.spark_settings import SETTINGS

ROOT = Path(__file__).resolve().parents[3]
_NAME = re.compile(r"spark\.spark_estimator\.([A-Za-z]\w*)")


def named_in(folder: str, pattern: str) -> dict[str, list[str]]:
    """Files by the settings that they name."""
    result: dict[str, list[str]] = {}
    for path in sorted((ROOT / folder).rglob(pattern)):
        for match in _NAME.finditer(path.read_text(encoding="utf-8")):
            result.setdefault(match[0], []).append(str(path.relative_to(ROOT)))
    return result


@pytest.mark.parametrize(("folder", "pattern"), [("spark_estimator", "*.py"), ("docs", "*.md"), ("tests", "*.py")])
def test_each_setting_that_is_named_anywhere_is_in_the_table(folder: str, pattern: str) -> None:
    named = named_in(folder, pattern)
    unknown = {name: files for name, files in named.items() if name not in SETTINGS}
    assert named and not unknown


def test_each_constant_is_in_the_table_once() -> None:
    constants = [value for name, value in vars(spark_settings).items() if name.isupper() and isinstance(value, str)]
    assert sorted(constants) == sorted(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_read_by_its_constant(name: str) -> None:
    (constant,) = (key for key, value in vars(spark_settings).items() if value == name)
    readers = [
        path
        for path in (ROOT / "spark_estimator").rglob("*.py")
        if path.name != "spark_settings.py" and re.search(rf"\b{constant}\b", path.read_text(encoding="utf-8"))
    ]
    assert readers, f"{name} has no effect"
    assert SETTINGS[name].default and SETTINGS[name].effect
