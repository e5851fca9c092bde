"""The generated reference of the documentation is complete: each variable, flag, parameter and error is on one page."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def tables() -> object:
    pytest.importorskip("pyspark")
    from sphinx_reference import tables

    return tables


def pages() -> dict[str, str]:
    return {str(path.relative_to(DOCS)): path.read_text() for path in sorted(DOCS.rglob("*.md"))}


def described(kind: str, text: str) -> Counter[str]:
    """The names that directives of a kind describe in generated Markdown."""
    return Counter(re.findall(rf"^:::\{{{kind}\}} (.+)$", text, re.MULTILINE))


def test_each_part_is_on_one_page(tables) -> None:  # type: ignore[no-untyped-def]
    from sphinx_reference import api

    used: Counter[str] = Counter()
    for page in pages().values():
        used.update(re.findall(r"^```\{reference\} (.+)$", page, re.MULTILINE))
    assert used == dict.fromkeys([*tables.PARTS, *(f"api {module}" for module in api.MODULES)], 1)


def test_every_environment_variable_is_described_once(tables) -> None:  # type: ignore[no-untyped-def]
    from spark_estimator import env

    names = {field.metadata["variable"] for field in dataclasses.fields(env.Settings)}
    names |= {*env.WITHOUT_EFFECT, *env.SET_FOR_SCRIPTS, *env.SET_FOR_WORKERS}
    parts = [part() for name, part in tables.PARTS.items() if name.startswith("environment")]
    assert described("envvar", "\n".join(parts)) == dict.fromkeys(names, 1)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("time to wait", "Time to wait."),
        ("keep: freed memory stays; system: no change", "`keep`: freed memory stays; `system`: no change."),
        ("threads; -: a share; 0: all", "Threads; `-`: a share; `0`: all."),
        ("how it travels: nccl: by NCCL", "How it travels: `nccl`: by NCCL."),
        ("the path of a file; default: the loaded one", "The path of a file; default: the loaded one."),
        ("fit_on_parquet() reads it", "fit_on_parquet() reads it."),
    ],
)
def test_values_are_code(tables, text: str, shown: str) -> None:  # type: ignore[no-untyped-def]
    assert tables.sentence(text) == shown


def test_every_flag_is_described_once(tables) -> None:  # type: ignore[no-untyped-def]
    sections = re.split(r"^## ", tables.command_line(), flags=re.MULTILINE)[1:]
    commands = {section.partition("\n")[0]: section for section in sections}
    assert len(commands) == 9 and commands.keys() == tables.parsers().keys()
    for command, parser in tables.parsers().items():
        flags = {flag for action in parser._actions for flag in action.option_strings}
        spelled = re.findall(r"^:::\{option\} (.+)$", commands[command], re.MULTILINE)
        shown = Counter(word for line in spelled for word in re.split(r"[ ,]+", line) if word.startswith("-"))
        shown.update(re.findall(r"`(--?[\w-]+)`", commands[command].partition("| flag |")[2]))
        assert shown == dict.fromkeys(flags, 1), command


def test_every_flag_has_a_help_text(tables) -> None:  # type: ignore[no-untyped-def]
    for command, parser in tables.parsers().items():
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (command, action.option_strings)


def test_every_estimator_parameter_is_described(tables) -> None:  # type: ignore[no-untyped-def]
    from spark_estimator.estimators import params
    from spark_estimator.estimators.keras import params as keras
    from spark_estimator.estimators.lightning import params as lightning
    from spark_estimator.estimators.torch import params as torch

    text = tables.parameters()
    entries = Counter(re.findall(r"^\[`\w+`\]\{#([\w-]+)\}\n: ", text, re.MULTILINE))
    assert max(entries.values()) == 1
    for keys, rows in (
        ("estimator torch", torch.ESTIMATOR),
        ("estimator keras", keras.ESTIMATOR),
        ("estimator lightning", lightning.ESTIMATOR),
        ("model", torch.MODEL),
        ("model keras-model", keras.MODEL),
    ):
        for row in rows:
            anchors = [f"{key}-{row.name.replace('_', '-')}" for key in keys.split()]
            assert any(anchor in entries for anchor in anchors), (keys, row.name)
    for name in {
        **params.WITHOUT_EFFECT,
        **keras.WITHOUT_EFFECT,
        **lightning.WITHOUT_EFFECT,
    }:
        assert text.count(f"| `{name}` |") == 1, name


def test_every_spark_setting_is_described(tables) -> None:  # type: ignore[no-untyped-def]
    from spark_estimator.launch.job.spark_settings import SETTINGS

    assert described("confval", tables.spark_settings()) == dict.fromkeys(SETTINGS, 1)
    page = (DOCS / "reference/spark-settings.md").read_text()
    names: set[str] = set()
    for path in (ROOT / "spark_estimator").rglob("*.py"):
        # String literals that are nothing but the name of a setting.
        names.update(re.findall(r"[\"'](spark\.[a-zA-Z_]+(?:\.[a-zA-Z]+)+)[\"']", path.read_text()))
    ours = {name for name in names if name.startswith("spark.spark_estimator.")}
    assert ours == set(SETTINGS)
    assert {name for name in names - ours if name not in page} == set()
    assert len(names) > 15


def error_types() -> list[type]:
    from spark_estimator import errors

    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
    ]


def test_every_error_has_an_entry_and_a_section(tables) -> None:  # type: ignore[no-untyped-def]
    entry = r"^\[`(\w+)`\]\(\.\./errors\.md#(\w+)\) \(`[A-Z_]+`\), a `\w+`\n: \S"
    rows = re.findall(entry, tables.errors(), re.MULTILINE)
    names = [kind.__name__ for kind in error_types()]
    assert rows == [(name, name.lower()) for name in names]
    page = (ROOT / "spark_estimator/errors.md").read_text()
    sections = re.findall(r"^### (.*?)(?=^##|\Z)", page.replace("\n#### ", "\n"), re.MULTILINE | re.DOTALL)
    assert Counter(section.split("\n")[0] for section in sections) == dict.fromkeys(names, 1)
    for section in sections:
        parts = re.findall(r"^\*\*(.+?)\.\*\*", section, re.MULTILINE)
        assert parts == ["Code", "Cause", "What you see", "Remedy"], section.split("\n")[0]


def test_every_kind_of_failure_has_a_section() -> None:
    from spark_estimator import errors

    kinds = re.search(r"kind: (.*?); ''", errors.JobFailedError.__doc__ or "", re.DOTALL)
    assert kinds
    text = (ROOT / "spark_estimator/errors.md").read_text()
    names = re.findall(r'"([\w ]+)"', kinds[1])
    assert len(names) == 7
    for name in names:
        assert f'(kind-{name.replace(" ", "-")})=\n#### Kind "{name}"\n' in text


def test_the_tables_of_versions_are_those_of_the_project(tables) -> None:  # type: ignore[no-untyped-def]
    text = tables.compatibility()
    constraints = (ROOT / "constraints.txt").read_text()
    for name in ("torch", "pyspark", "lightning"):
        pinned = re.search(rf"^{name}==(\S+)$", constraints, re.MULTILINE)
        assert pinned and re.search(rf"^\| {name} \|.*\| {re.escape(pinned[1])} \|$", text, re.MULTILINE), name
    pinned = re.search(r"^tensorflow-cpu==(\S+)$", constraints, re.MULTILINE)
    assert pinned and re.search(rf"^\| tensorflow \|.*\| {re.escape(pinned[1])} \|$", text, re.MULTILINE)
    assert "petastorm" not in text
    assert "| petastorm | >=0.12.1,<0.14 | 0.13.1 |" in tables.petastorm_environment()
