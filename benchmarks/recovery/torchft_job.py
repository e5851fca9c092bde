"""Runs the benchmark's training under torchft: a lighthouse, and processes that are started again when they die."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# torchft's own limits are 5 and 60 seconds.
_LIGHTHOUSE = ("--min_replicas", "1", "--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "100")
# Replicas end after the same step, within some seconds. One that has not ended then is none of them.
_LEAVING = 15.0


def run(python: str, folder: str, size: int, steps: int, step_ms: float) -> tuple[int, float]:
    """Trains to the end, on replicas that continue without one that is lost.

    Args:
        python: an interpreter that has torchft 0.2, its lighthouse beside it.
        folder: for counts and logs.

    Returns:
        (batches, seconds): the number of batches in all committed steps, which is `size` for a step of all replicas;
        and the time until the first replica ended.

    Raises:
        RuntimeError: a replica has failed.
        TimeoutError: one has taken five times as long as its steps wait, and a minute.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    address = f"http://localhost:{port}"
    environment = {**os.environ, "TORCHFT_LIGHTHOUSE": address, "PYTHONPATH": str(_ROOT)}
    limit = 60 + 5 * steps * step_ms / 1000
    lighthouse = str(Path(python).with_name("torchft_lighthouse"))
    ended, times = threading.Event(), [time.monotonic()]

    def replica(rank: int) -> str:
        """The output of the process that has ended well; '' where the others had ended before it joined them again."""
        arguments = ("-m", "benchmarks.recovery.torchft_rank", folder, str(rank), str(size), str(steps), str(step_ms))
        deadline = time.monotonic() + limit
        while True:
            with (
                open(f"{folder}/replica-{rank}.log", "a") as log,
                subprocess.Popen(
                    [python, *arguments], env=environment, stdout=subprocess.PIPE, stderr=log, text=True
                ) as process,
            ):
                try:
                    while process.poll() is None and not ended.wait(0.05):
                        if time.monotonic() > deadline:
                            raise TimeoutError(f"replica {rank} has not ended within {limit:g} seconds: see {log.name}")
                    output = process.communicate(timeout=_LEAVING)[0]
                except subprocess.TimeoutExpired:
                    return ""  # it began after the others had ended, and would train from the first step alone
                finally:
                    process.kill()
            if process.returncode == 0:
                times.append(time.monotonic())
                ended.set()
                return output
            if ended.is_set():
                return ""
            if process.returncode > 0:
                raise RuntimeError(f"replica {rank} ended with {process.returncode}: see {log.name}")

    with open(f"{folder}/lighthouse.log", "w") as log:
        with subprocess.Popen(
            [lighthouse, "--bind", f"[::]:{port}", *_LIGHTHOUSE], env=environment, stdout=log, stderr=log
        ) as server:
            try:
                with ThreadPoolExecutor(size) as pool:
                    outputs = list(filter(None, pool.map(replica, range(size))))
            finally:
                server.kill()
    return max(int(re.findall(r"(\d+) batches", output)[-1]) for output in outputs), times[1] - times[0]
