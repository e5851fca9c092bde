"""hdfs-native on a real HDFS: whole files, one client in a process, limits of time, and errors of one line."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("hdfs_native")
pytest.importorskip("pyspark")

from spark_estimator.errors import PreflightError
from spark_estimator.store import HDFSStore, Store, hdfs_client
from tests.docs.page_blocks import blocks_of
from tests.hadoop_daemons import Hadoop, start_hadoop
from tests.store.hadoop import core_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_PROGRAM = """
import sys
from spark_estimator.store import Store
store = Store.create(sys.argv[1])
for action in (lambda: store.write(sys.argv[1] + "/new", b"new"), lambda: store.read(sys.argv[1] + "/file")):
    try: print("done", action())
    except Exception as error: print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with pytest.MonkeyPatch.context() as patch:
        with start_hadoop(tmp_path_factory.mktemp("hadoop") / "daemons") as running:
            patch.setenv("HADOOP_CONF_DIR", str(running.conf))
            yield running


def try_as(user: str, url: str, program: str = _PROGRAM) -> str:
    """Return what another process prints that is this user; by default it writes and reads in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", program, url],
        env={**os.environ, "HADOOP_USER_NAME": user, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout


def test_files(hadoop: Hadoop) -> None:
    """Also of several blocks, though the name node hears of each too late for hdfs-native alone."""
    store = HDFSStore("/files")
    assert store.prefix_path == f"{hadoop.uri}/files"
    large = os.urandom(1 << 20) * 35
    for content in (b"", b"old", large, b"new"):
        store.write(f"{hadoop.uri}/files/a/file", content)
        assert pickle.loads(pickle.dumps(store)).read("/files/a/file") == content
    with store.open("/files/parts", "wb") as file:
        for start in range(0, len(large), 3_000_000):
            file.write(large[start : start + 3_000_000])
    with store.open("/files/parts") as file:
        assert file.read(10) == large[:10]
        file.seek(-5, os.SEEK_END)
        assert file.read(100) == large[-5:]
        file.seek(5)
        assert file.read() == large[5:]
    assert [entry.path for entry in store.entries("/files/a")] == ["/files/a/file"], "nothing is left beside it"
    assert hadoop.shell("-ls", "-R", "/files").count("file") == 1 + 3
    store.remove("/files/a")
    assert not store.exists("/files/a/file")
    with pytest.raises(FileNotFoundError, match=rf"^{hadoop.uri}/files/none: File does not exist: /files/none$"):
        store.open("/files/none")
    assert HDFSStore("/files", extra_conf={"fs.defaultFS": hadoop.uri}).exists("/files/parts")
    hadoop.shell("-mkdir", "-p", "/viewed")
    Store.create("viewfs://view/data").write("viewfs://view/data/file", b"viewed")  # type: ignore[attr-defined]
    assert store.read("/viewed/file") == b"viewed"


def test_the_program_of_the_page(hadoop: Hadoop) -> None:
    program = blocks_of("docs/how-to/install/hdfs.md", "python")[0].text
    assert try_as("root", hadoop.uri, program) == f"{hadoop.uri}/tmp/spark-estimator b'written'\n"


def test_a_child_of_fork_has_a_client_of_its_own(hadoop: Hadoop) -> None:
    """As a worker of a DataLoader, and its own children."""
    store = HDFSStore("/fork")
    store.write("/fork/file", b"content")

    def read_in_children(generations: int) -> int:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            is_right = store.read("/fork/file") == b"content"
            os._exit(read_in_children(generations - 1) if is_right and generations > 1 else int(not is_right))
        return os.waitpid(child, 0)[1]

    assert read_in_children(2) == 0
    assert store.fs is store.fs, "one for each process"


def test_a_user(hadoop: Hadoop) -> None:
    hadoop.shell("-mkdir", "-p", "/private")
    hadoop.shell("-put", "-f", str(hadoop.conf / "core-site.xml"), "/private/file")
    hadoop.shell("-chmod", "-R", "700", "/private")
    user = "user=alice, access=EXECUTE"
    denied = (
        rf"PermissionError {hadoop.uri}/private/\S+: AccessControlException: Permission denied: {user}, inode=\S+\n"
    )
    assert re.fullmatch(2 * denied, try_as("alice", f"{hadoop.uri}/private"))
    assert "done None\ndone b'<?xml" in try_as("root", f"{hadoop.uri}/private")
    assert HDFSStore("/private").exists("/private/new")
    with pytest.raises(PreflightError, match=r"has one user in a process, and it is the default, not alice\."):
        HDFSStore("/private", user="alice").exists("/private/new")
    with pytest.raises(PreflightError, match="replication: hdfs-native has user, kerb_ticket and extra_conf"):
        HDFSStore("/private", storage_options={"replication": 1}).exists("/private/new")


def test_what_is_refused(hadoop: Hadoop) -> None:
    hadoop.shell("-mkdir", "-p", "/quota", "/names")
    hadoop.administrate("-setSpaceQuota", "9m", "/quota")
    hadoop.administrate("-setQuota", "2", "/names")
    store = HDFSStore("/quota")
    store.write("/quota/file", b"old")
    with pytest.raises(
        OSError, match=rf"{hadoop.uri}/quota/.file.next: DSQuotaExceeded\S+ The DiskSpace quota of /quota"
    ):
        store.write("/quota/file", bytes(10 << 20))
    assert store.read("/quota/file") == b"old"
    with pytest.raises(
        OSError, match=rf"{hadoop.uri}/names/\S+: NSQuotaExceeded\S+ The NameSpace quota .* is exceeded"
    ):
        store.write("/names/a", b"")
    hadoop.administrate("-safemode", "enter")
    try:
        with pytest.raises(
            OSError, match=rf"{hadoop.uri}/quota\S*: SafeModeException: .* in safe mode. It was turned on"
        ):
            store.write("/quota/file", b"new")
        assert store.read("/quota/file") == b"old"
    finally:
        hadoop.administrate("-safemode", "leave")


@pytest.mark.timeout(600)
def test_a_name_node_that_is_away(hadoop: Hadoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen, or killed and started again, which is in safe mode until its data nodes have reported."""
    store = HDFSStore("/away")
    store.write("/away/file", b"old")
    process = hadoop.pids()["namenode"]
    os.kill(process, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(hdfs_client, "_LIMIT", timedelta(seconds=2))
            with pytest.raises(TimeoutError, match=rf"{hadoop.uri}/away/\S+: HDFS has not answered within 2 s"):
                store.read("/away/file")
        threading.Timer(3, lambda: os.kill(process, signal.SIGCONT)).start()
        assert store.read("/away/file") == b"old"
    finally:
        os.kill(process, signal.SIGCONT)
    hadoop.kill("namenode")
    quick = {"extra_conf": {"dfs.client.failover.max.attempts": "1"}}
    with pytest.raises(ConnectionError, match=rf"{hadoop.uri}/away/\S+: Connection refused"):
        HDFSStore("/away", **quick).read("/away/file")  # type: ignore[arg-type]

    def come_back() -> None:
        time.sleep(10)
        hadoop.restart("namenode")
        threading.Event().wait()  # a daemon ends with the thread that has started it

    threading.Thread(target=come_back, daemon=True).start()
    store.write("/away/file", b"new")
    assert store.read("/away/file") == b"new"


def test_without_a_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised where the store is made: before any row is written."""
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(core_site(tmp_path / "conf", fs__defaultFS="viewfs://view")))
    for path in ("hdfs://name/x", "/x"):
        with pytest.raises(
            PreflightError, match=r"no client of HDFS here. Run pip install hdfs-native.* libhdfs\.so in"
        ):
            HDFSStore(path)
    with pytest.raises(PreflightError, match="pip install hdfs-native"):
        Store.create("viewfs://view/x")
