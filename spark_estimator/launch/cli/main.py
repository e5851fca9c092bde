"""``horovodrun``: runs a command on several ranks, with Horovod's flags and output format.

Ranks are on this host, or on several (``-H``, ``--hostfile``, ``--host-discovery-script``) that are reached by ssh: see
``launch.ssh``. ``launch.cli.flags`` documents the flags.
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
from spark_estimator.collectives.context import nccl_built
from spark_estimator.collectives.rendezvous import host_id, make_job_id
from spark_estimator.console import discard_unread, end_with_reader
from spark_estimator.env import Settings
from spark_estimator.errors import EncryptionUnavailableError, NativeLibraryError, PreflightError, SparkEstimatorError
from spark_estimator.launch.cli.flags import parse_arguments, to_cooldown, to_environment, to_terms
from spark_estimator.launch.cli.on_spark import check_spark, report_error, run_script
from spark_estimator.launch.elastic.job_entry import run_elastic
from spark_estimator.launch.job.environment import add_own_python, decide_host_threads, make_worker_environment
from spark_estimator.launch.job.hosts import assign_hosts
from spark_estimator.launch.job.spec import JobSpec, requires_encryption
from spark_estimator.launch.local import run_job
from spark_estimator.launch.log_relay.display import OutputFiles, make_line_printer
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.job import run_elastic_on_hosts, run_on_hosts
from spark_estimator.launch.ssh.where import Where, find_hosts
from spark_estimator.launch.worker.child_process import keep_standard_descriptors
from spark_estimator.observe.driver_log import announce
from spark_estimator.observe.profiling import check_ranks
from spark_estimator.observe.status_line import wants_progress
from spark_estimator.posix import IS_WINDOWS

# A command may save its state on SIGTERM; then it is killed.
_GENTLE = timedelta(seconds=2)
_HERE = Where()


@end_with_reader
def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run ``horovodrun``, by default with the process's own arguments."""
    keep_standard_descriptors()
    # Inherited; how a rank has ended could not be known.
    if not IS_WINDOWS and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    parser, options = parse_arguments(arguments)
    if options.check_build:
        print(describe_build())
        sys.exit(0)
    for flag, reason in options.explained or ():
        _report(f"{flag} has no effect: {reason}.")
    if options.num_proc is None:
        parser.error("-np is required: how many ranks to run.")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("a command is required, for example: horovodrun -np 2 python train.py")
    if options.num_proc < 1:
        parser.error(f"-np {options.num_proc}: at least one rank is needed.")
    ended_by = [signal.SIGINT]
    try:
        script = check_spark(options, command)
    except ValueError as error:
        parser.error(str(error))
    try:
        with _interrupt_on_signals(ended_by):
            if script is not None:
                sys.exit(run_script(script, options, _report))
            try:
                where = _locate_ranks(options)
            except ValueError as error:
                parser.error(str(error))
            except (NativeLibraryError, PreflightError) as error:
                _report(str(error))
                sys.exit(1)
            sys.exit(run_command(command, options.num_proc, to_environment(options), options, where))
    except KeyboardInterrupt:
        how = "interrupted" if ended_by[-1] == signal.SIGINT else f"ended by {ended_by[-1].name}"
        _report(f"{how}; all ranks were stopped.")
        sys.exit(128 + ended_by[-1])


def run_command(
    command: Sequence[str],
    size: int,
    environment: dict[str, str],
    options: argparse.Namespace | None = None,
    where: Where = _HERE,
) -> int:
    """Run `command` on `size` ranks, with more variables, and show their output with the rank in front.

    Return 0, or the exit status of the rank that failed first; 128 + n for one that signal n killed.
    """
    terms, hosts, ssh = where.terms, where.hosts, where.options
    size = size if terms is None else terms.size
    verbose = bool(options and options.verbose)
    output = Path(options.output_filename) if options and options.output_filename else None
    path = add_own_python(os.environ.get("PATH", os.defpath))
    variables = environment if hosts else {"PATH": path, **environment}
    try:
        # With several hosts, each host computes its own share of cores.
        for_workers = variables if hosts else make_worker_environment(os.environ, variables, decide_host_threads(size))
        encrypted = requires_encryption()
        check_ranks({**os.environ, **environment}, size)
    except (ValueError, EncryptionUnavailableError, PreflightError) as error:
        _report(str(error))
        return 1
    job = JobSpec(
        job_id=make_job_id(),
        size=size,
        function=shlex.join(command),
        command=tuple(command),
        environment=for_workers,
        progress=terms is None and wants_progress(),
        driver_host_id=host_id(),
        encrypted=encrypted,
    )
    if verbose:
        shares = assign_hosts(hosts, size, "-H") if hosts else ()
        places = ", ".join(f"{len(share.ranks)} on {share.host.name}" for share in shares)
        _report(f"{size} ranks, {places or f'all on {socket.gethostname()}'}: {job.function}")
    with contextlib.ExitStack() as stack:
        show = make_line_printer(with_time=bool(options and options.prefix_output_with_timestamp))
        try:
            if output is not None:
                show = stack.enter_context(OutputFiles(output, size, show)).show
            if terms is None:
                if hosts is None or ssh is None:
                    run_job(job, show_line=show, gentle=_GENTLE)
                else:
                    run_on_hosts(job, hosts, ssh, show_line=show, gentle=_GENTLE)
            elif hosts is None or ssh is None:
                run_elastic(job, terms, show_line=show, report=_report, gentle=_GENTLE)
            else:
                run_elastic_on_hosts(
                    job,
                    terms,
                    hosts,
                    ssh,
                    show_line=show,
                    report=_report,
                    gentle=_GENTLE,
                    cooldown=where.cooldown,
                    watch=where.watch,
                )
        except SparkEstimatorError as error:
            return report_error(error, _report)
    if verbose:
        _report("all ranks ended with exit status 0")
    return 0


def describe_build() -> str:
    """Return the text of ``--check-build``, in Horovod's form."""

    def format_mark(present: bool, name: str) -> str:
        return f"    [{'X' if present else ' '}] {name}"

    torch = importlib.util.find_spec("torch") is not None
    lines = [
        f"spark_estimator v{__version__} (Horovod's API):",
        "",
        "Available Frameworks:",
        format_mark(importlib.util.find_spec("tensorflow") is not None, "TensorFlow"),
        format_mark(torch, "PyTorch"),
        format_mark(False, "MXNet"),
        "",
        "Available Controllers:",
        format_mark(False, "MPI"),
        format_mark(True, "Gloo (replaced by spark_estimator's own controller)"),
        "",
        "Available Tensor Operations:",
        format_mark(nccl_built() > 0, "NCCL"),
        format_mark(False, "DDL"),
        format_mark(False, "CCL"),
        format_mark(False, "MPI"),
        format_mark(True, "Gloo (replaced by spark_estimator's own engine: shared memory and TCP)"),
    ]
    return "\n".join(lines)


def _locate_ranks(options: argparse.Namespace) -> Where:
    """Find the hosts on which the job runs. Raises as `find_hosts`."""
    network = {
        "--ssh-port": options.ssh_port,
        "--ssh-identity-file": options.ssh_identity_file,
        "--network-interfaces": options.network_interfaces,
    }

    def read_options(needed: bool) -> SshOptions:
        settings = Settings.read({**os.environ, **to_environment(options)})
        port, identity_file, interfaces = network.values()
        return SshOptions.read(settings, port=port, identity_file=identity_file, interfaces=interfaces, needed=needed)

    where = find_hosts(
        options.num_proc,
        read_options,
        _report,
        hosts=options.hosts,
        hostfile=options.hostfile,
        script=options.host_discovery_script,
        slots_per_host=options.slots_per_host,
        terms=to_terms(options),
        cooldown=to_cooldown(options.blacklist_cooldown_range),
    )
    if where.hosts is None:
        for flag, value in {**network, "--blacklist-cooldown-range": options.blacklist_cooldown_range}.items():
            if value is not None:
                _report(f"{flag} has no effect: all ranks run on this host.")
    return where


def _report(text: str) -> None:
    announce(text, "horovodrun")


@contextlib.contextmanager
def _interrupt_on_signals(ended_by: list[signal.Signals]) -> Iterator[None]:
    """Treat SIGTERM and SIGHUP, within, as Ctrl-C, so that the ranks are ended; add the signal to `ended_by`."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        ended_by.append(signal.Signals(number))
        discard_unread()  # a terminal that has hung up takes no more lines
        raise KeyboardInterrupt

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM,) if IS_WINDOWS else (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup asks for
                before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
