"""Runs the benchmark's training under torchft: a lighthouse, and processes that are started again when they die."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# torchft's own limits are 5 and 60 seconds.
_LIGHTHOUSE = ("--min_replicas", "1", "--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "100")


def run(python: str, folder: str, size: int, steps: int, step_ms: float) -> int:
    """Trains to the end, on replicas that continue without one that is lost.

    Args:
        python: an interpreter that has torchft 0.2, its lighthouse beside it.
        folder: for counts and logs.

    Returns:
        The batches of all committed steps: `size` for each step in which no replica was missing.

    Raises:
        RuntimeError: a replica has failed.
        subprocess.TimeoutExpired: one has taken five times as long as its steps wait, and a minute.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    address = f"http://localhost:{port}"
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": address, "PYTHONPATH": str(_ROOT)}
    limit = 60 + 5 * steps * step_ms / 1000
    lighthouse = str(Path(python).with_name("torchft_lighthouse"))

    def replica(rank: int) -> str:
        """The output of the process that has ended well."""
        arguments = ("-m", "benchmarks.recovery.torchft_rank", folder, str(rank), str(size), str(steps), str(step_ms))
        while True:
            with open(f"{folder}/replica-{rank}.log", "a") as log:
                process = subprocess.run(
                    [python, *arguments],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    timeout=limit,
                    check=False,
                )
            if process.returncode == 0:
                return process.stdout
            if process.returncode > 0:
                raise RuntimeError(f"replica {rank} ended with {process.returncode}: see {log.name}")

    with open(f"{folder}/lighthouse.log", "w") as log:
        with subprocess.Popen(
            [lighthouse, "--bind", f"[::]:{port}", *_LIGHTHOUSE], env=environment, stdout=log, stderr=log
        ) as server:
            try:
                with ThreadPoolExecutor(size) as pool:
                    outputs = list(pool.map(replica, range(size)))
            finally:
                server.kill()
    return max(int(re.findall(r"(\d+) batches", output)[-1]) for output in outputs)
