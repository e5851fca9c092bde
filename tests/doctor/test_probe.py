"""The checks that a task runs on its executor, without Spark."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import spark_estimator
from spark_estimator import _native
from spark_estimator.doctor import probe, verdicts
from spark_estimator.doctor.findings import Severity


def task_with(*addresses: str) -> Any:
    """The part of a ``TaskContext`` that holds the resources which Spark assigned."""
    resources = {"gpu": SimpleNamespace(addresses=list(addresses))} if addresses else {}
    return SimpleNamespace(resources=lambda: resources)


def test_the_interpreter_and_the_package_are_those_of_this_process() -> None:
    assert probe.check_python() == {"version": platform.python_version(), "executable": sys.executable}
    assert probe.check_package() == {
        "version": spark_estimator.__version__,
        "path": os.path.dirname(spark_estimator.__file__),
    }


def test_versions_of_missing_packages_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PACKAGES", ("numpy", "no-such-package"))
    versions = probe.check_packages()
    assert list(versions) == ["pyspark", "numpy", "no-such-package"]
    assert versions["numpy"] and versions["no-such-package"] == ""


def test_the_engine_is_loaded_in_another_process() -> None:
    assert probe.check_engine()["build"].startswith(f"{_native.ABI_VERSION}; ")


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("import os; os.kill(os.getpid(), 4)", "loading it ended with signal 4: it printed no error"),
        ("raise OSError('no such symbol')", "loading it ended with status 1: OSError: no such symbol"),
    ],
)
def test_an_engine_that_cannot_be_loaded_does_not_end_the_task(
    monkeypatch: pytest.MonkeyPatch, program: str, text: str
) -> None:
    monkeypatch.setattr(probe, "ENGINE", program)
    with pytest.raises(RuntimeError, match=text):
        probe.check_engine()


def test_the_engine_is_no_engine_without_the_library_that_an_encrypted_job_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert probe.check_engine(encrypted=True)["build"].startswith(f"{_native.ABI_VERSION}; ")
    hidden = "; from spark_estimator.security import encryption; encryption.find_libcrypto = lambda: '/no/such/file'"
    monkeypatch.setattr(probe, "ENGINE", probe.ENGINE + hidden)
    assert probe.check_engine(encrypted=False)
    with pytest.raises(RuntimeError, match=r"EncryptionUnavailableError: .* /no/such/file is not OpenSSL") as caught:
        probe.check_engine(encrypted=True)
    finding = verdicts._judge_engine({"engine": {"error": str(caught.value)}})
    assert (finding.state, finding.fix[:24]) == (Severity.MISSING, "install OpenSSL's librar")


def test_free_disk_memory_and_cores_are_positive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    disk = probe.check_disk()
    assert disk["folder"] == str(tmp_path) and disk["free"] > 0
    assert list(tmp_path.iterdir()) == [], "the file that it wrote is gone"
    assert probe.check_memory()["free"] > 0
    assert 1 <= probe.check_cores()["usable"] <= (os.cpu_count() or 1)


def test_gpus_of_the_host_and_of_the_task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert probe.check_gpus(task_with("1")) == {"given": ["1"], "visible": "4,5", "there": []}
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-abc, NVIDIA H200'; echo broken\n")
    smi.chmod(0o755)
    assert probe.check_gpus(task_with())["there"] == [["0", "GPU-abc", "NVIDIA H200"]]
    smi.write_text("#!/bin/sh\necho no driver; exit 9\n")
    assert probe.check_gpus(task_with())["trouble"] == "no driver"


def test_a_driver_without_an_address_and_one_that_refuses() -> None:
    assert "no address" in probe.check_driver({"channel": None}, 0)["error"]
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    channel = {"host": "127.0.0.1", "port": port, "token": "00" * 32, "job_id": "0" * 16}
    with pytest.raises(OSError, match="refused"):
        probe.check_driver({"channel": channel, "seconds": 1.0}, 0)


def test_a_report_can_be_sent_as_json() -> None:
    report = {"disk": probe.check_disk(), "memory": probe.check_memory(), "gpus": probe.check_gpus(task_with())}
    assert json.loads(json.dumps(report)) == report
