"""A real MLflow tracking server with a database, which tests start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


class TrackingServer:
    """``mlflow server`` on a new database, which can be stopped and started again.

    Attributes:
        address: as ``mlflow.set_tracking_uri`` takes it; the same after a restart.
    """

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._folder = folder
        self.address = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/runs.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        log = self._folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/health", timeout=5):
                return
            assert self._process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
