"""``horovodrun``: runs a command on several ranks, with Horovod's flags and its way of showing output.

Ranks are on this host, or on several (``-H``, ``--hostfile``) that are reached by ssh: see ``launch.ssh``. What is not
there yet says so. What only MPI needed is accepted and explained.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

from spark_estimator import __version__
from spark_estimator.collectives.rendezvous import host_id, new_job_id
from spark_estimator.console import ends_with_its_reader
from spark_estimator.elastic.rounds import Terms
from spark_estimator.env import Settings
from spark_estimator.errors import SparkEstimatorError, WorkerFailedError
from spark_estimator.launch.elastic import run_elastic
from spark_estimator.launch.hosts import Host, place
from spark_estimator.launch.local import run_job
from spark_estimator.launch.output import OutputFiles
from spark_estimator.launch.spec import JobSpec
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.job import named_hosts, run_elastic_on_hosts, run_on_hosts
from spark_estimator.launch.worker_environment import host_share, path_with_own_python, worker_environment
from spark_estimator.observe.driver_log import print_line

_MIB = 1 << 20
# A command may save its state on SIGTERM; then it is killed.
_GENTLE = timedelta(seconds=2)

# Flags of Horovod's that mean nothing here: name -> number of values that follow it, and why.
_NEEDS_NO_MPI = "there is no MPI: ranks talk over shared memory and TCP"
_NOT_NEEDED = "nothing of the kind is needed here"
_WITHOUT_EFFECT = {
    "--gloo": (0, ""),
    "--mpi": (0, _NEEDS_NO_MPI),
    "--jsrun": (0, _NEEDS_NO_MPI),
    "--mpi-args": (1, _NEEDS_NO_MPI),
    "--tcp": (0, _NEEDS_NO_MPI),
    "--binding-args": (1, _NEEDS_NO_MPI),
    "--mpi-threads-disable": (0, _NEEDS_NO_MPI),
    "--no-mpi-threads-disable": (0, _NEEDS_NO_MPI),
    "--disable-cache": (0, _NOT_NEEDED),
    "--cycle-time-ms": (1, "the engine is woken by work and has no cycle"),
}
# Flags of Horovod's that ask for something that is not there yet, and what to do instead: it would be wrong to go on
# without.
_NOT_YET = {
    "--host-discovery-script": (1, "name the hosts, -H or --hostfile"),
    "--timeline-filename": (1, "HOROVOD_TIMELINE=FILE does the same"),
    "--autotune": (0, "HOROVOD_AUTOTUNE=1 does the same"),
    "--config-file": (1, "give what stands in it as flags"),
}


@ends_with_its_reader
def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of ``horovodrun``.

    Args:
        arguments: the command line without the program's name; the process's own by default.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.check_build:
        print(build_report())
        sys.exit(0)
    for flag, reason in options.explained or ():
        print(f"horovodrun: {flag} has no effect: {reason}.", file=sys.stderr)
    if options.num_proc is None:
        parser.error("-np is required: how many ranks to run.")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command was given; for example: horovodrun -np 2 python train.py")
    if options.num_proc < 1:
        parser.error(f"-np {options.num_proc}: at least one rank is needed.")
    terms = _terms(parser, options)
    hosts, ssh = _hosts(parser, options)
    try:
        sys.exit(run_command(command, options.num_proc, environment_of(options), options, terms, hosts, ssh))
    except KeyboardInterrupt:
        print("horovodrun: interrupted; all ranks have been ended.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def run_command(
    command: Sequence[str],
    size: int,
    environment: dict[str, str],
    options: argparse.Namespace | None = None,
    terms: Terms | None = None,
    hosts: Sequence[Host] | None = None,
    ssh: SshOptions | None = None,
) -> int:
    """Runs `command` on `size` ranks, and shows their output with the rank in front.

    Args:
        environment: variables for the command, beside this process's own.
        options: of the command line; for output files and what is said.
        terms: of an elastic job; None: the first failure ends the job.
        hosts: filled by the ranks in this order; None: all are on this one.
        ssh: how other hosts are reached.

    Returns:
        0, or the exit status of the rank that failed first; 128 + n for one that signal n killed.
    """
    verbose = bool(options and options.verbose)
    output = Path(options.output_filename) if options and options.output_filename else None
    said = environment if hosts else _with_own_python(environment)
    try:
        # Where there are several hosts, each finds out its own share of cores.
        for_workers = said if hosts else worker_environment(os.environ, said, host_share(size))
    except ValueError as error:
        _say(str(error))
        return 1
    job = JobSpec(
        job_id=new_job_id(),
        size=size,
        function=shlex.join(command),
        command=tuple(command),
        environment=for_workers,
        driver_host_id=host_id(),
    )
    if verbose:
        shares = place(hosts, size, "-H") if hosts else ()
        where = ", ".join(f"{len(share.ranks)} on {share.host.name}" for share in shares)
        where = where or f"all on {socket.gethostname()}"
        print(f"horovodrun: {size} ranks, {where}: {job.function}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        show = stack.enter_context(OutputFiles(output, size)).show if output else print_line
        try:
            if terms is None:
                if hosts is None or ssh is None:
                    run_job(job, show_line=show, gentle=_GENTLE)
                else:
                    run_on_hosts(job, hosts, ssh, show_line=show, gentle=_GENTLE)
            elif hosts is None or ssh is None:
                run_elastic(job, terms, show_line=show, say=_say, gentle=_GENTLE)
            else:
                run_elastic_on_hosts(job, terms, hosts, ssh, show_line=show, say=_say, gentle=_GENTLE)
        except WorkerFailedError as error:
            print(f"horovodrun: {error}", file=sys.stderr)
            status = error.exitcode if error.exitcode is not None else 1
            return status if status >= 0 else 128 - status
        except SparkEstimatorError as error:
            print(f"horovodrun: {error}", file=sys.stderr)
            return 1
    if verbose:
        print("horovodrun: all ranks ended with exit status 0", file=sys.stderr)
    return 0


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """The variables that the flags stand for."""
    values: dict[str, object] = {
        "HOROVOD_START_TIMEOUT": options.start_timeout,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": options.stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": options.stall_check_shutdown_time_seconds,
        "HOROVOD_LOG_LEVEL": options.log_level,
    }
    if options.fusion_threshold_mb is not None:
        values["HOROVOD_FUSION_THRESHOLD"] = options.fusion_threshold_mb * _MIB
    if options.no_stall_check:
        values["HOROVOD_STALL_CHECK_DISABLE"] = 1
    return {name: str(value) for name, value in values.items() if value is not None}


def build_report() -> str:
    """What ``--check-build`` prints, in Horovod's form."""

    def mark(present: bool, name: str) -> str:
        return f"    [{'X' if present else ' '}] {name}"

    frameworks = [mark(importlib.util.find_spec(module) is not None, name) for module, name in (("torch", "PyTorch"),)]
    lines = [
        f"spark_estimator v{__version__} (Horovod's API):",
        "",
        "Available Frameworks:",
        *frameworks,
        "",
        "Available Controllers:",
        mark(False, "MPI"),
        mark(True, "Gloo (its place is taken by spark_estimator's own controller)"),
        "",
        "Available Tensor Operations:",
        mark(False, "NCCL"),
        mark(False, "MPI"),
        mark(True, "Gloo (its place is taken by spark_estimator's own engine: shared memory and TCP)"),
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np NUM_PROC [flags] command...",
        description="Runs a command on several ranks. Where Horovod is absent, its names are served.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-v", "--version", action="version", version=__version__)
    add("-np", "--num-proc", dest="num_proc", type=int, help="number of ranks")
    add("-H", "--hosts", help="host:slots,host:slots; ranks fill them in this order (default: this host)")
    add("-hostfile", "--hostfile", metavar="FILE", help="the same in lines: host slots=n")
    add("-p", "--ssh-port", type=_positive, metavar="PORT", help="of sshd on other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="the private key for other hosts")
    add(
        *("--network-interfaces", "--network-interface"),
        metavar="NAMES",
        help="names with commas; ranks of several hosts talk over the first that each host has",
    )
    add("-cb", "--check-build", action="store_true", help="print what this build can do, and exit")
    add("--verbose", action="store_true", help="say what is started")
    add("--start-timeout", type=_positive, metavar="SECONDS", help="how long ranks wait for one another in init()")
    add("--output-filename", metavar="DIR", help="write each rank's output to DIR/rank.N/stdout and stderr")
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=_positive,
        metavar="N",
        help="elastic: go on with so few ranks",
    )
    add("--max-np", "--max-num-proc", dest="max_np", type=_positive, metavar="N", help="elastic: replace lost ranks")
    add("--reset-limit", type=_not_negative, metavar="N", help="elastic: how often the job may be made of other ranks")
    add("--elastic-timeout", type=_positive, metavar="SECONDS", help="elastic: how long to wait for a rank (600)")
    add("--fusion-threshold-mb", type=_not_negative, metavar="MB", help="small allreduces run as one up to this size")
    add("--stall-check", action="store_true", help="on unless switched off")
    add("--no-stall-check", action="store_true", help="never tell of ranks that keep others waiting")
    add("--stall-check-warning-time-seconds", type=_not_negative, metavar="SECONDS")
    add("--stall-check-shutdown-time-seconds", type=_not_negative, metavar="SECONDS")
    add("--log-level", type=str.upper, choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"])
    for flag, (count, reason) in _WITHOUT_EFFECT.items():
        add(flag, action=_Explain, nargs=count, dest="explained", const=reason, help=argparse.SUPPRESS)
    for flag, (count, instead) in _NOT_YET.items():
        add(flag, action=_Refuse, nargs=count, dest="refused", const=instead, help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="program and arguments")
    return parser


class _Explain(argparse.Action):
    """Accepts a flag that has no effect and notes why."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if self.const:
            namespace.explained = [*(namespace.explained or []), (option, self.const)]


class _Refuse(argparse.Action):
    """Refuses a flag whose meaning is not there yet."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, option: str | None = None
    ) -> None:
        parser.error(f"{option} is not supported yet; {self.const}.")


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _positive(text: str) -> int:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("0 would be none at all")
    return value


def _terms(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Terms | None:
    """What was said of an elastic job; None when it is none."""
    if options.min_np is None and options.max_np is None:
        for flag, value in (("--reset-limit", options.reset_limit), ("--elastic-timeout", options.elastic_timeout)):
            if value is not None:
                parser.error(f"{flag} is for elastic jobs: say --min-np, the least ranks to go on with.")
        return None
    size = options.num_proc
    if options.max_np is not None and options.max_np < size:
        parser.error(f"--max-np {options.max_np} is less than the {size} ranks of -np.")
    seconds = options.elastic_timeout
    try:
        return Terms(
            size=size,
            min_size=size if options.min_np is None else options.min_np,
            replace=options.max_np is not None,
            reset_limit=options.reset_limit,
            timeout=timedelta(seconds=Settings.read().elastic_timeout_seconds if seconds is None else seconds),
        )
    except ValueError as error:
        parser.error(str(error))


def _hosts(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[Host] | None, SshOptions | None]:
    """The hosts and how to reach them; (None, None) when all ranks are on this one."""
    network = {
        "--ssh-port": options.ssh_port,
        "--ssh-identity-file": options.ssh_identity_file,
        "--network-interfaces": options.network_interfaces,
    }
    try:
        hosts = named_hosts(options.hosts, options.hostfile, options.num_proc)
        if hosts is None:
            for flag, value in network.items():
                if value is not None:
                    print(f"horovodrun: {flag} has no effect: all ranks run on this host.", file=sys.stderr)
            return None, None
        settings = Settings.read({**os.environ, **environment_of(options)})
        port, identity_file, interfaces = network.values()
        return hosts, SshOptions.read(settings, port=port, identity_file=identity_file, interfaces=interfaces)
    except ValueError as error:
        parser.error(str(error))


def _with_own_python(environment: dict[str, str]) -> dict[str, str]:
    return {"PATH": path_with_own_python(os.environ.get("PATH", os.defpath)), **environment}


def _say(text: str) -> None:
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Within, SIGTERM is Ctrl-C: the ranks are ended before this process ends."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
