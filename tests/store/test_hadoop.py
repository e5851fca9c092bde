"""Hadoop's default file system: which configuration counts, variables in it, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.store import HDFSStore
from spark_estimator.store.hadoop import find_default_filesystem
from tests.store.hadoop import core_site

# A Spark session of other tests has file:///, which does not count.


@pytest.fixture(autouse=True)
def _no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", ["name:8020", "hdfs://${missing}"])
def test_a_default_that_names_no_file_system(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path, fs__defaultFS=value)))
    with pytest.raises(PreflightError, match=r"core-site.xml.*fs\.defaultFS|fs\.defaultFS.*core-site.xml"):
        HDFSStore("/x")
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(PreflightError, match=r"core-site\.xml cannot be read"):
        HDFSStore("/x")


def test_the_first_configuration_with_a_remote_file_system_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path / "a", fs__defaultFS="file:///")))
    with_host = core_site(tmp_path / "b", fs__defaultFS="hdfs://name:8020/path")
    monkeypatch.setenv("CLASSPATH", f"{tmp_path}/missing:{tmp_path / 'x.jar'}:{with_host}")
    assert find_default_filesystem("/x", {}) == "hdfs://name:8020", "without the path"
    assert find_default_filesystem("/x", {"fs.default.name": "s3a://bucket"}) == "s3a://bucket"
    assert find_default_filesystem("/x", {"fs.defaultFS": "a://b", "fs.default.name": "c://d"}) == "a://b"
    assert find_default_filesystem("/x", {"fs.defaultFS": "file:/"}) == "hdfs://name:8020"


def test_variables_of_the_file_and_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"fs__defaultFS": "hdfs://${host}:${env.PORT_OF_HDFS}", "host": "${first}.${first}", "first": "name"}
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path, **properties)))
    monkeypatch.setenv("PORT_OF_HDFS", "9000")
    assert find_default_filesystem("/x", {}) == "hdfs://name.name:9000"
    monkeypatch.delenv("PORT_OF_HDFS")
    with pytest.raises(PreflightError, match=r"env\.PORT_OF_HDFS.*with a variable that has no value in this file"):
        find_default_filesystem("/x", {})
    core_site(tmp_path, fs__defaultFS="hdfs://${endless}", endless="${endless}")
    with pytest.raises(PreflightError, match="with a variable that has no value"):
        find_default_filesystem("/x", {})


def test_an_error_lists_all_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    with pytest.raises(PreflightError) as error:
        find_default_filesystem("hdfs:///x", {})
    text = str(error.value)
    assert "in extra_conf; the Spark session; " in text and f"{tmp_path}/etc/hadoop/core-site.xml (HADOOP_HOME)" in text
    assert "(HADOOP_CONF_DIR is not set)" in text
