"""``horovodrun``'s flags: Horovod's flags, the variable of each, and why some have no effect here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta

from spark_estimator import __version__
from spark_estimator.elastic.decisions import Terms
from spark_estimator.env import WITHOUT_EFFECT, Settings
from spark_estimator.launch.cli.config_file import read_flags
from spark_estimator.launch.elastic.placement import Cooldown

_MIB = 1 << 20
# Without --max-np a job may grow as far as a script names slots.
_UNBOUNDED = 1 << 20

# Flags of Horovod's that mean nothing here: name -> number of values that follow it, and why.
_NEEDS_NO_MPI = "there is no MPI: ranks talk over shared memory and TCP"
_ALLGATHER, _TORUS = WITHOUT_EFFECT["HOROVOD_HIERARCHICAL_ALLGATHER"], WITHOUT_EFFECT["HOROVOD_TORUS_ALLREDUCE"]
_WITHOUT_EFFECT = {
    "--gloo": (0, ""),
    "--mpi": (0, _NEEDS_NO_MPI),
    "--jsrun": (0, _NEEDS_NO_MPI),
    "--mpi-args": (1, _NEEDS_NO_MPI),
    "--tcp": (0, _NEEDS_NO_MPI),
    "--binding-args": (1, _NEEDS_NO_MPI),
    "--mpi-threads-disable": (0, _NEEDS_NO_MPI),
    "--no-mpi-threads-disable": (0, ""),
    "--disable-cache": (0, "there are no preliminary checks whose results could be cached"),
    "--cycle-time-ms": (1, "the engine is event-driven and has no cycle time"),
    "--hierarchical-allgather": (0, _ALLGATHER),
    "--no-hierarchical-allgather": (0, ""),
    "--torus-allreduce": (0, _TORUS),
    "--no-torus-allreduce": (0, ""),
    "--autotune": (0, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--no-autotune": (0, ""),
    "--autotune-log-file": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--autotune-warmup-samples": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--autotune-steps-per-sample": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--autotune-bayes-opt-max-samples": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--autotune-gaussian-process-noise": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE"]),
    "--num-nccl-streams": (1, WITHOUT_EFFECT["HOROVOD_NUM_NCCL_STREAMS"]),
}


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Parse a command line; settings of its ``--config-file`` count where no flag sets them.

    Args:
        arguments: without the program's name; the process's own by default.

    Returns:
        The parser, for later errors, and the options.
    """
    argument_parser = make_parser()
    options = argument_parser.parse_args(arguments)
    if options.config_file is None:
        return argument_parser, options
    try:
        from_file = read_flags(options.config_file)
    except ValueError as error:
        argument_parser.error(str(error))
    # Those of the file come first, so that those of the command line win.
    return argument_parser, argument_parser.parse_args(
        [*from_file, *(sys.argv[1:] if arguments is None else arguments)]
    )


def to_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables that the flags set."""
    values: dict[str, object] = {
        "HOROVOD_START_TIMEOUT": options.start_timeout,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": options.gloo_timeout_seconds,
        "HOROVOD_CACHE_CAPACITY": options.cache_capacity,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": options.hierarchical_allreduce,
        "HOROVOD_THREAD_AFFINITY": options.thread_affinity,
        "HOROVOD_TIMELINE": options.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": options.timeline_mark_cycles,
        "SPARK_ESTIMATOR_PROFILE": options.profile,
        "SPARK_ESTIMATOR_PROFILE_FOLDER": options.profile_folder,
        "HOROVOD_STALL_CHECK_DISABLE": None if options.stall_check is None else not options.stall_check,
        "HOROVOD_STALL_CHECK_TIME_SECONDS": options.stall_check_warning_time_seconds,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": options.stall_check_shutdown_time_seconds,
        "HOROVOD_LOG_LEVEL": options.log_level,
        "HOROVOD_LOG_HIDE_TIME": options.log_hide_time,
    }
    if options.fusion_threshold_mb is not None:
        values["HOROVOD_FUSION_THRESHOLD"] = options.fusion_threshold_mb * _MIB
    return {
        name: str(int(value) if isinstance(value, bool) else value)
        for name, value in values.items()
        if value is not None
    }


def to_terms(options: argparse.Namespace) -> Terms | None:
    """Return the options of an elastic job; None: it is not elastic. Raises ValueError: it makes no sense."""
    script = options.host_discovery_script
    if options.min_np is None and options.max_np is None and script is None:
        for flag, value in (
            ("--reset-limit", options.reset_limit),
            ("--elastic-timeout", options.elastic_timeout),
            ("--blacklist-cooldown-range", options.blacklist_cooldown_range),
        ):
            if value is not None:
                raise ValueError(
                    f"{flag} needs an elastic job: set --min-np, the smallest number of ranks to continue with."
                )
        return None
    size, most = options.num_proc, options.max_np
    if options.min_np is not None and not 1 <= options.min_np <= size:
        raise ValueError(f"--min-np {options.min_np} must be from 1 to {size}, the ranks of -np.")
    if most is not None and most < size:
        raise ValueError(f"--max-np {most} is less than the {size} ranks of -np.")
    if most is None and script is not None:
        most = max(size, _UNBOUNDED)
    seconds = options.elastic_timeout
    return Terms(
        size=size,
        min_size=size if options.min_np is None else options.min_np,
        replace=most is not None,
        max_size=most,
        reset_limit=options.reset_limit,
        timeout=timedelta(seconds=Settings.read().elastic_timeout_seconds if seconds is None else seconds),
        standby=Settings.read().standby,
    )


def to_cooldown(seconds: Sequence[float] | None) -> Cooldown | None:
    """Make the cool-down that was asked for as two numbers. Raises ValueError when they make no sense."""
    if seconds is None:
        return None
    try:
        first, most = (timedelta(seconds=float(number)) for number in seconds)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"a cool-down range must be two numbers of seconds, MIN and MAX; got {seconds!r}.") from None
    return Cooldown(first, most)


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    argument_parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np NUM_PROC [flags] command...",
        description="Runs a command on several ranks. `import horovod` works there without Horovod.",
        allow_abbrev=False,
    )
    add = argument_parser.add_argument
    add("-v", "--version", action="version", version=__version__)
    add("-np", "--num-proc", dest="num_proc", type=int, help="number of ranks")
    add("-cb", "--check-build", action="store_true", help="print the features of this build, and exit")
    add("--verbose", action="store_true", help="print the ranks and their hosts")
    add("--config-file", metavar="FILE", help="YAML in Horovod's format; flags override it")
    add("--output-filename", metavar="DIR", help="write each rank's output to DIR/rank.N/stdout and stderr")
    add(
        *("-prefix-timestamp", "--prefix-output-with-timestamp"),
        action="store_true",
        help="prefix each output line with the time",
    )
    add("--start-timeout", type=_parse_positive, metavar="SECONDS", help="how long ranks wait for each other in init()")
    _add_hosts(argument_parser.add_argument_group("hosts"))
    _add_elastic(argument_parser.add_argument_group("elastic jobs"))
    _add_spark(argument_parser.add_argument_group("ranks in Spark"))
    _add_settings(argument_parser.add_argument_group("settings of the ranks"))
    for flag, (count, reason) in _WITHOUT_EFFECT.items():
        add(flag, action=_Explain, nargs=count, dest="explained", const=reason, help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="program and arguments")
    return argument_parser


def _add_hosts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-H", "--hosts", help="host:slots,host:slots; ranks fill them in this order (default: this host)")
    add("-hostfile", "--hostfile", metavar="FILE", help="file with lines: host slots=n")
    add("-p", "--ssh-port", type=_parse_positive, metavar="PORT", help="port of sshd on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for the other hosts")
    add(
        *("--network-interfaces", "--network-interface"),
        metavar="NAMES",
        help="comma-separated names; ranks of several hosts use the first that their host has",
    )


def _add_spark(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--spark", action="store_true", help="run a Python script in Spark tasks that start together, not on hosts")
    add("--master", metavar="URL", help="with --spark: spark://host:7077, yarn, ... (default: a local session)")
    add("--remote", metavar="URL", help="with --spark: a Spark Connect server, sc://host:15002")
    add("--conf", action="append", default=[], metavar="NAME=VALUE", help="with --spark: a setting of the session")


def _add_elastic(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--min-np",
        "--min-num-proc",
        dest="min_np",
        type=_parse_positive,
        metavar="N",
        help="smallest number of ranks to continue with",
    )
    add("--max-np", "--max-num-proc", dest="max_np", type=_parse_positive, metavar="N", help="use all slots, up to N")
    add("--host-discovery-script", metavar="COMMAND", help="command that prints host:slots lines; run every second")
    add(
        "--slots-per-host",
        type=_parse_positive,
        metavar="N",
        help="slots of hosts that the script prints without a number (1)",
    )
    add("--reset-limit", type=_parse_not_negative, metavar="N", help="how often the ranks of the job may change")
    add(
        "--elastic-timeout",
        type=_parse_positive,
        metavar="SECONDS",
        help="how long to wait for a rank, or a host (600)",
    )
    add(
        "--blacklist-cooldown-range",
        type=_parse_positive,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="reuse a failed host after MIN seconds, doubled each time up to MAX (default: never)",
    )


def _add_settings(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--fusion-threshold-mb", type=_parse_not_negative, metavar="MB", help="fuse small allreduces up to this size")
    add(
        "--cache-capacity",
        type=_parse_not_negative,
        metavar="NAMES",
        help="names of collectives whose agreement is cached",
    )
    add("--thread-affinity", metavar="CORES", help="CPU of each local rank's engine thread: 0,2,4")
    add(
        "--gloo-timeout-seconds",
        type=_parse_positive,
        metavar="SECONDS",
        help="same as --start-timeout, which overrides it",
    )
    add(
        "--hierarchical-allreduce",
        dest="hierarchical_allreduce",
        action="store_true",
        default=None,
        help="reduce within each host first",
    )
    add(
        "--no-hierarchical-allreduce",
        dest="hierarchical_allreduce",
        action="store_false",
        default=None,
        help="never reduce within each host first",
    )
    add("--timeline-filename", metavar="FILE", help="write a Chrome trace of every op")
    add(
        "--timeline-mark-cycles",
        dest="timeline_mark_cycles",
        action="store_true",
        default=None,
        help="mark in the trace when the engine's thread wakes",
    )
    add(
        "--no-timeline-mark-cycles",
        dest="timeline_mark_cycles",
        action="store_false",
        default=None,
        help="do not mark it (default)",
    )
    add(
        "--profile",
        metavar="RANKS:FIRST-LAST",
        help="run PyTorch's profiler on these ranks for these steps: 0:10-13; traces come to --profile-folder",
    )
    add("--profile-folder", metavar="DIR", help="where this host keeps the traces of --profile (default: here)")
    add("--stall-check", dest="stall_check", action="store_true", default=None, help="on by default")
    add("--no-stall-check", dest="stall_check", action="store_false", default=None, help="disable the stall warning")
    add(
        "--stall-check-warning-time-seconds",
        type=_parse_not_negative,
        metavar="SECONDS",
        help="time before a stalled operation is reported",
    )
    add(
        "--stall-check-shutdown-time-seconds",
        type=_parse_not_negative,
        metavar="SECONDS",
        help="time before a stalled operation fails; 0: never (default)",
    )
    add(
        "--log-level",
        type=str.upper,
        choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"],
        help="least severe log messages that are printed",
    )
    add(
        "--log-without-timestamp",
        "--log-hide-timestamp",
        dest="log_hide_time",
        action="store_true",
        default=None,
        help="log messages without the time",
    )
    add(
        "--log-with-timestamp",
        "--no-log-hide-timestamp",
        dest="log_hide_time",
        action="store_false",
        default=None,
        help="log messages begin with the time (default)",
    )


class _Explain(argparse.Action):
    """Accepts a flag that has no effect and notes why."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if self.const:
            namespace.explained = [*(namespace.explained or []), (option, self.const)]


def _parse_not_negative(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, not {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _parse_positive(text: str) -> int:
    value = _parse_not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
