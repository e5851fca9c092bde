"""``horovodrun --spark``: a Python script on ranks in Spark, with horovodrun's output and exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_estimator.errors import PythonEnvironmentError, SparkEstimatorError, WorkerFailedError
from spark_estimator.launch.cli.flags import to_environment
from spark_estimator.launch.job.failures import add_horovods_sentence
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.script import Script
from spark_estimator.launch.log_relay.display import OutputFiles, make_line_printer
from spark_estimator.launch.spark.entry import run_in_session

_FOR_SPARK = ("master", "remote", "conf")
# The flags that say where or how launches without Spark start ranks.
_FOR_HOSTS = (
    "hosts",
    "hostfile",
    "host_discovery_script",
    "slots_per_host",
    "ssh_port",
    "ssh_identity_file",
    "network_interfaces",
    "min_np",
    "max_np",
    "reset_limit",
    "elastic_timeout",
    "blacklist_cooldown_range",
)


def check_spark(options: argparse.Namespace, command: Sequence[str]) -> list[str] | None:
    """Return the script and its arguments, where the command line asks for Spark; else None.

    Raises ValueError: the flags contradict each other, or the command is not a Python script.
    """
    if not options.spark:
        flag = next((name for name in _FOR_SPARK if getattr(options, name)), None)
        if flag is not None:
            raise ValueError(f"--{flag} is for --spark, which is not set.")
        return None
    flag = next((name for name in _FOR_HOSTS if getattr(options, name, None) is not None), None)
    if flag is not None:
        raise ValueError(f"--{flag.replace('_', '-')} and --spark exclude each other: Spark starts the ranks.")
    if options.master and options.remote:
        raise ValueError("--master and --remote exclude each other: one session runs the job.")
    malformed = next((text for text in options.conf if "=" not in text), None)
    if malformed is not None:
        raise ValueError(f"--conf {malformed}: it must be NAME=VALUE.")
    words = list(command)
    if re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        words = words[1:]
        if words[:1] == ["-u"]:  # output is not buffered in any case
            words = words[1:]
    if not words or not words[0].endswith(".py"):
        raise ValueError(
            f"--spark runs a Python script, horovodrun --spark -np 2 python train.py ..., but the command is "
            f"{' '.join(command)!r}."
        )
    return words


def run_script(script: Sequence[str], options: argparse.Namespace, report: Callable[[str], None]) -> int:
    """Run the script on ranks in Spark, and show their output with the rank in front. Return the exit status."""
    with contextlib.ExitStack() as stack:
        show = make_line_printer(with_time=bool(options.prefix_output_with_timestamp))
        try:
            if options.output_filename:
                show = stack.enter_context(OutputFiles(Path(options.output_filename), options.num_proc, show)).show
            job = JobOptions(environment=to_environment(options), show_line=show, verbose=2 if options.verbose else 1)
            program = Script(script[0], script[1:])
            _start_session(options)
            run_in_session(program, options.num_proc, job, caller="horovodrun --spark", size_word="-np")
        except SparkEstimatorError as error:
            return report_error(error, report)
    if options.verbose:
        report("all ranks ended with exit status 0")
    return 0


def _start_session(options: argparse.Namespace) -> None:
    if not (options.master or options.remote or options.conf):
        return
    try:
        from spark_estimator.launch.spark.session import make_session
    except ModuleNotFoundError as error:
        raise PythonEnvironmentError(
            f"--spark needs PySpark, but this Python has no module {error.name!r}: pip install pyspark pyarrow pandas."
        ) from error
    make_session(options.master, options.remote, dict(text.split("=", 1) for text in options.conf), options.num_proc)


def report_error(error: SparkEstimatorError, report: Callable[[str], None]) -> int:
    """Report why a job has failed, and return the exit status."""
    if not isinstance(error, WorkerFailedError):
        report(str(error))
        return 1
    report(str(add_horovods_sentence(error)))
    status = error.exitcode if error.exitcode is not None else 1
    return status if status >= 0 else 128 - status
