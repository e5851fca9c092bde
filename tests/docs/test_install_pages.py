"""Runs command blocks of the pages of platforms; those that need more daemons run beside the tests of these."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page_blocks import blocks_of
from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def test_the_commands_of_the_standalone_page(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("torch")
    page = "docs/how-to/install/standalone.md"
    (tmp_path / "train.py").write_text(blocks_of(page, "python")[0].text)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    commands = blocks_of(page, "sh")[0].text.replace("7077", str(port))
    folders = f"{Path(sys.executable).parent}:{clusters.SPARK_HOME}/bin"
    env = clusters.environment(PATH=f"{folders}:{os.environ['PATH']}", PYSPARK_PYTHON=None, PYSPARK_DRIVER_PYTHON=None)
    process = subprocess.Popen(
        [str(shutil.which("bash")), "-ec", commands],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=(tmp_path / "output").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        status = process.wait(400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)  # a worker ends its executors, which are in separate groups
    output = (tmp_path / "output").read_text()
    assert status == 0 and "\nsum 2.0\n" in output, output[-6000:]
