"""Starts the job of a run with its launcher, and returns what its user sees."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos import program, recovery
from chaos.plan import LINKS, Fault, Launcher, Run
from chaos.proxy import Proxy
from spark_estimator.collectives.rendezvous import PeerFacts
from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import HorovodInternalError, SparkEstimatorError
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.outcome import Outcome, Relay
from spark_estimator.launch.job.pickling import load_values
from spark_estimator.launch.job.spec import JobSpec
from spark_estimator.launch.local import run_job, run_local
from spark_estimator.launch.worker.worker_host import LocalWorkerHandle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A job that runs for longer hangs.
HANG_SECONDS = 90.0
# Ranks that do not join a new round are killed after this time (600 s by default).
_ROUND_TIMEOUT = timedelta(seconds=6)
# How long the others wait for a new process: PyTorch has to be imported.
_PATIENCE = timedelta(seconds=30)
#: A variable of the ranks, which identifies the remaining processes of a run.
MARK = "CHAOS_RUN"
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Shown:
    """What a job's user sees of its end.

    Attributes:
        value: rank 0's; None when there is none.
        error: the error's text; '' when there is none.
        reported: what an elastic job printed about itself.
    """

    value: int | None
    error: str = ""
    reported: str = ""


def environment_of(run: Run, mark: str, folder: Path) -> dict[str, str]:
    """The variables of a run's ranks: the limits of silence are short, so that a run is."""
    return {
        MARK: mark,
        # The server that forks the ranks ends soon after them: it does not count as left behind.
        "SPARK_ESTIMATOR_WARM": "0.2",
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.3",
        "SPARK_ESTIMATOR_SILENCE_SECONDS": "4",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "2",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5",
        "HOROVOD_START_TIMEOUT": "30" if run.launcher is Launcher.RECOVERY else "10",  # it imports PyTorch
        "SPARK_ESTIMATOR_SHARED_MEMORY": str(int(run.shared_memory)),
        "SPARK_ESTIMATOR_ENCRYPTION": "require" if run.encrypted else "off",
    }


def start(run: Run, mark: str, folder: Path, session: Callable[[], SparkSession]) -> Shown:
    """Runs the job to its end.

    Args:
        mark: value of `MARK`.
        folder: of the run.
        session: makes the Spark session when it is needed.
    """
    variables = environment_of(run, mark, folder)
    if run.launcher is Launcher.COMMAND:
        return _by_command(run, variables, folder)
    arguments = (run.to_json(), str(folder))
    lines: list[str] = []
    reported = io.StringIO()
    options = JobOptions(
        args=arguments,
        environment=variables,
        verbose=0,
        show_line=lambda rank, _, text: lines.append(f"[{rank}] {text}"),
    )
    try:
        if run.launcher is Launcher.LOCAL:
            value = run_local(program.train, run.size, options)[0]
        elif run.launcher is Launcher.LINKS:
            value = _through_proxies(run, options, folder)
        elif run.launcher is Launcher.ELASTIC:
            terms = Terms(size=run.size, min_size=1, timeout=_ROUND_TIMEOUT)
            with contextlib.redirect_stderr(reported):
                value = run_elastic_local(program.train, terms, options)[0]
        elif run.launcher is Launcher.RECOVERY:
            patience = _PATIENCE if run.replaces_first else None
            terms = Terms(run.size, 1, replace=True, timeout=_ROUND_TIMEOUT, patience=patience)
            with contextlib.redirect_stderr(reported):
                value = run_elastic_local(recovery.train, terms, options)[0]
        else:
            from spark_estimator.spark import run as run_on_spark

            session()
            with (folder / "output.ranks").open("w") as output:
                value = run_on_spark(
                    program.train, arguments, num_proc=run.size, env=variables, stdout=output, stderr=output, verbose=0
                )[0]
    except (SparkEstimatorError, HorovodInternalError) as error:
        return Shown(None, str(error), reported.getvalue())
    finally:
        (folder / "output").write_text("\n".join(lines))
        (folder / "output.job").write_text(reported.getvalue())
    return Shown(value, reported=reported.getvalue())


class _Proxied(LocalWorkerHandle):
    """A worker that its peers reach through a proxy, as if it were on a separate host."""

    def __init__(self, job: JobSpec, relay: Relay, number: int, proxies: Sequence[Proxy | None]) -> None:
        super().__init__(job, relay, host=f"host{number}")
        self._number = number
        self._proxies = proxies

    def start(self) -> PeerFacts | Outcome:
        facts = super().start()
        proxy = self._proxies[self._number]
        if isinstance(facts, Outcome) or proxy is None:
            return facts
        return replace(facts, port=proxy.port, local_name="")

    @property
    def port(self) -> int:
        """Where the worker itself listens."""
        return self._facts.port


def _through_proxies(run: Run, options: JobOptions, folder: Path) -> int:
    job = JobSpec.build(
        program.train,
        run.size,
        options,
        make_worker_environment(os.environ, options.variables, decide_host_threads(run.size)),
    )
    proxies: list[Proxy | None] = [None] * run.size
    over = threading.Event()

    def make(relay: Relay) -> list[_Proxied]:
        handles = [_Proxied(job, relay, number, proxies) for number in range(run.size)]
        for number, handle in enumerate(handles):
            proxies[number] = Proxy(handle.port, f"{run.seed}/{run.number}/{number}")
        for index, fault in enumerate(run.faults):
            if fault.kind in LINKS:
                threading.Thread(target=_strike, args=(index, fault, proxies, folder, over), daemon=True).start()
        return handles

    try:
        outcomes = run_job(job, make, show_line=options.show_line or (lambda *_: None))
    finally:
        over.set()
        for proxy in proxies:
            if proxy is not None:
                proxy.close()
    return int(load_values([outcomes[rank].pickled for rank in job.result_ranks], job.function)[0])


def _strike(index: int, fault: Fault, proxies: Sequence[Proxy | None], folder: Path, over: threading.Event) -> None:
    """Begins a link's fault once its rank has reached the step."""
    while not (folder / f"due.{index}").exists():
        if over.wait(0.005):
            return
    if over.wait(fault.milliseconds / 1000):
        return
    (folder / f"fired.{index}").write_text(f"{fault.rank} 0 {time.monotonic()}")
    proxy = proxies[fault.rank]
    assert proxy is not None
    proxy.strike(fault)


def _by_command(run: Run, variables: dict[str, str], folder: Path) -> Shown:
    (folder / "run.json").write_text(run.to_json())
    rank_program = [sys.executable, "-m", "chaos.program", str(folder / "run.json"), str(folder)]
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", str(run.size), *rank_program]
    environment = {**os.environ, **variables, "PYTHONPATH": str(_ROOT)}
    with (folder / "output").open("wb") as output:
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                status = process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    if status == 0:
        result = folder / f"{program.RESULT}.0"
        return Shown(int(result.read_text()) if result.exists() else None)
    text = (folder / "output").read_text(errors="replace")
    message = re.search(r"^horovodrun: .*", text, re.MULTILINE | re.DOTALL)
    return Shown(None, message[0] if message else f"no error of horovodrun's, but status {status}: {text[-2000:]}")


@contextlib.contextmanager
def sessions() -> Iterator[Callable[[], SparkSession]]:
    """Yields a function that returns the one Spark session of all runs; it is started when it is first needed."""
    opened: list[Any] = []

    def session() -> SparkSession:
        if not opened:
            from pyspark.sql import SparkSession

            from spark_estimator.launch.spark.java_environment import choose_java_environment

            os.environ.update(
                choose_java_environment(),
                PYSPARK_PYTHON=sys.executable,
                PYTHONPATH=str(_ROOT),
                SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            )
            opened.append(
                SparkSession.builder.master("local[4]")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.python.authenticate.socketTimeout", "60s")
                .getOrCreate()
            )
        return opened[0]  # type: ignore[no-any-return]

    try:
        yield session
    finally:
        for started in opened:
            started.stop()
