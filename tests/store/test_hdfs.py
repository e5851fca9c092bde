"""HDFS: which file system a path is on, and files on a name node."""

from __future__ import annotations

import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.errors import PreflightError
from spark_estimator.store import HDFSStore, Store
from tests.store.crashes import KILL, at_each_call
from tests.store.hadoop import core_site, stand_in


@pytest.fixture(autouse=True)
def _no_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME", "CLASSPATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def name_node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of all name nodes' files."""
    variables = stand_in(tmp_path_factory.mktemp("hdfs"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setitem(sys.modules, "hdfs_native", None)
        yield Path(variables["STAND_IN_HDFS"])


@pytest.mark.parametrize("path", ["/user/x", "hdfs:///user/x", "hdfs:/user/x", "/user/./y/../x/"])
@pytest.mark.parametrize("place", ["HADOOP_CONF_DIR", "HADOOP_HOME", "CLASSPATH", "extra_conf"])
def test_a_path_without_a_host_is_on_the_default_file_system(
    path: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {}
    if place == "extra_conf":
        arguments["extra_conf"] = {"fs.defaultFS": "hdfs://name:8020/"}
    else:
        (tmp_path / "etc").mkdir()
        folder = core_site(tmp_path / "etc" / "hadoop", fs__defaultFS="hdfs://${of.mine}:8020", of__mine="name")
        monkeypatch.setenv(place, str(tmp_path if place == "HADOOP_HOME" else folder))
    store = HDFSStore(path, **arguments)
    assert store.prefix_path == "hdfs://name:8020/user/x"
    assert store.get_train_data_path(1) == "hdfs://name:8020/user/x/intermediate_train_data.1"
    monkeypatch.delenv(place, raising=False)
    there: HDFSStore = pickle.loads(pickle.dumps(store))  # on a host with another configuration
    assert there.get_checkpoint_path("run") == "hdfs://name:8020/user/x/runs/run/checkpoint"


@pytest.mark.parametrize(
    ("value", "path", "prefix"),
    [
        ("hdfs://service", "/x", "hdfs://service/x"),
        ("viewfs://cluster/", "/x", "viewfs://cluster/x"),
        ("memory://of/", "/x", "memory://of/x"),
    ],
)
def test_other_default_file_systems(
    value: str, path: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path, fs__default__name=value)))
    store = HDFSStore(path, runs_path="/runs")
    assert store.prefix_path == prefix
    assert store.get_runs_path() == f"{prefix.removesuffix('/x')}/runs"
    if value.startswith("memory"):
        store.write(store.get_runs_path() + "/a", b"content")
        assert store.read("/runs/a") == b"content" and store.exists("/runs/a") and not os.path.exists("/runs")
        assert [entry.path for entry in store.entries("/runs")] == ["/runs/a"]
        with pytest.raises(ValueError, match=r"user: for HDFS only; the default file system is memory://of"):
            HDFSStore(path, user="me")
        with pytest.raises(ValueError, match=r"hdfs:///x names no host, and the default file system is memory://of"):
            HDFSStore("hdfs:///x")


@pytest.mark.parametrize("value", ["", "file:///"])
def test_without_a_default_file_system_nothing_is_written_here(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path, fs__defaultFS=value)))
    words = r"/x is a path on Hadoop's default file system, and there is none: .*Write hdfs://host:port/x, or set"
    with pytest.raises(PreflightError, match=words + ".*LocalStore"):
        HDFSStore("/x")
    with pytest.raises(PreflightError, match="Write hdfs://host:port/path"):
        HDFSStore("hdfs:///x")


def test_the_session_s_default_comes_before_files(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path, fs__defaultFS="hdfs://file:1")))
    assert HDFSStore("/x").prefix_path == "hdfs://file:1/x"  # the session has file:///
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    before = configuration.get("fs.defaultFS")
    configuration.set("fs.defaultFS", "hdfs://session:2")
    try:
        assert HDFSStore("/x").prefix_path == "hdfs://session:2/x"
        with ThreadPoolExecutor() as others:
            assert others.submit(HDFSStore, "/x").result().prefix_path == "hdfs://session:2/x"
    finally:
        configuration.set("fs.defaultFS", before)


def test_arguments() -> None:
    store = HDFSStore("/x", "name", 8020, "me", "/ticket", "libhdfs", {"a": "b"}, train_path="hdfs://name/train")
    assert store.prefix_path == "hdfs://name:8020/x"
    assert store.get_train_data_path() == "hdfs://name:8020/train"
    assert store.storage_options == {"user": "me", "kerb_ticket": "/ticket", "extra_conf": {"a": "b"}}
    assert HDFSStore("hdfs://me@name:8020/x").storage_options == {"user": "me"}
    assert HDFSStore("hdfs://name/x", port=8020, host="name").prefix_path == "hdfs://name:8020/x"
    with pytest.raises(ValueError, match="driver='libhdfs3'"):
        HDFSStore("hdfs://x", driver="libhdfs3")
    with pytest.warns(UserWarning, match="temp_dir='/tmp' has no effect"):
        HDFSStore("hdfs://name/x", temp_dir="/tmp")
    for path, arguments, words in (
        ("/x", {"port": 8020}, "port=8020 needs host"),
        ("hdfs://a/x", {"host": "b"}, "name two hosts"),
        ("hdfs://a:1/x", {"host": "a", "port": 2}, "name two ports"),
        ("hdfs://a@b/x", {"user": "c"}, "name two users"),
        ("x/y", {}, "HDFSStore has hdfs://host:port/path, hdfs:///path or /path"),
        ("file:///x", {}, "for others Store.create"),
        ("hdfs://a:b/x", {}, "the port is a number"),
        ("hdfs://a/x", {"runs_path": "hdfs://b/y"}, "hdfs://b/y: this store is on hdfs://a"),
        ("hdfs://a/x", {"runs_path": "file:/y"}, "file:/y: this store is on hdfs://a"),
    ):
        with pytest.raises(ValueError, match=words):
            HDFSStore(path, **arguments)  # type: ignore[arg-type]


def test_files_on_a_name_node(name_node: Path) -> None:
    store = Store.create("hdfs://me@one:8020/user/x")
    assert isinstance(store, HDFSStore)
    path = store.get_checkpoint_path("run")
    assert path is not None
    store.write(path, b"old")
    store.write("/user/x/plain", b"plain")
    assert (name_node / "one:8020/user/x/runs/run/checkpoint").read_bytes() == b"old"
    assert (name_node / "one:8020/user/x/plain").read_bytes() == b"plain"
    assert store.get_checkpoints("run", "point") == [path]
    assert not Path("/user/x").exists()
    HDFSStore("/user/x", "two", 9000).write("/user/x/plain", b"of two")
    assert (name_node / "two:9000/user/x/plain").read_bytes() == b"of two"
    assert "one:8020 me" in (name_node / "connections").read_text()


def test_a_writer_killed_at_each_call_leaves_a_whole_file_on_a_name_node(name_node: Path, tmp_path: Path) -> None:
    store = HDFSStore("hdfs://three:1/x")
    path = store.get_run_path("run") + "/checkpoint"
    old, new = b"old" * 10_000, b"new" * 20_000
    store.write(path, old)
    seen = set()

    def check(where: str) -> None:
        seen.add(store.read(path))
        assert seen <= {old, new}, where
        store.write(path, old)
        assert os.listdir(name_node / "three:1/x/runs/run") == ["checkpoint"], where

    assert at_each_call(lambda: store.write(path, new), check, KILL, tmp_path / "log") > 4
    assert seen == {old, new}
