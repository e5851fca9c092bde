"""``horovodrun``'s flags: Horovod's own, what each stands for, and why some have no effect here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta

from spark_estimator import __version__
from spark_estimator.elastic.rounds import Terms
from spark_estimator.env import WITHOUT_EFFECT, Settings
from spark_estimator.launch.cli.config_file import flags_of
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
    "--disable-cache": (0, "nothing is checked beforehand that could be remembered"),
    "--cycle-time-ms": (1, "the engine is woken by work and has no cycle"),
    "--hierarchical-allgather": (0, _ALLGATHER),
    "--no-hierarchical-allgather": (0, ""),
    "--torus-allreduce": (0, _TORUS),
    "--no-torus-allreduce": (0, ""),
    "--autotune-gaussian-process-noise": (1, WITHOUT_EFFECT["HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"]),
    "--num-nccl-streams": (1, WITHOUT_EFFECT["HOROVOD_NUM_NCCL_STREAMS"]),
}


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Reads a command line; what stands in its ``--config-file`` counts where no flag says otherwise.

    Args:
        arguments: without the program's name; the process's own by default.

    Returns:
        The parser, for errors to come, and the options.
    """
    found = parser()
    options = found.parse_args(arguments)
    if options.config_file is None:
        return found, options
    try:
        from_file = flags_of(options.config_file)
    except ValueError as error:
        found.error(str(error))
    # Those of the file come first, so that those of the command line win.
    return found, found.parse_args([*from_file, *(sys.argv[1:] if arguments is None else arguments)])


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """The variables that the flags stand for."""
    values: dict[str, object] = {
        "HOROVOD_START_TIMEOUT": options.start_timeout,
        "HOROVOD_GLOO_TIMEOUT_SECONDS": options.gloo_timeout_seconds,
        "HOROVOD_CACHE_CAPACITY": options.cache_capacity,
        "HOROVOD_HIERARCHICAL_ALLREDUCE": options.hierarchical_allreduce,
        "HOROVOD_THREAD_AFFINITY": options.thread_affinity,
        "HOROVOD_AUTOTUNE": options.autotune,
        "HOROVOD_AUTOTUNE_LOG": options.autotune_log_file,
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": options.autotune_warmup_samples,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": options.autotune_steps_per_sample,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": options.autotune_bayes_opt_max_samples,
        "HOROVOD_TIMELINE": options.timeline_filename,
        "HOROVOD_TIMELINE_MARK_CYCLES": options.timeline_mark_cycles,
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


def terms_of(options: argparse.Namespace) -> Terms | None:
    """What was said of an elastic job; None when it is none.

    Raises:
        ValueError: it makes no sense; the text quotes it.
    """
    script = options.host_discovery_script
    if options.min_np is None and options.max_np is None and script is None:
        for flag, value in (
            ("--reset-limit", options.reset_limit),
            ("--elastic-timeout", options.elastic_timeout),
            ("--blacklist-cooldown-range", options.blacklist_cooldown_range),
        ):
            if value is not None:
                raise ValueError(f"{flag} is for elastic jobs: say --min-np, the least ranks to go on with.")
        return None
    size, most = options.num_proc, options.max_np
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
    )


def cooldown_of(seconds: Sequence[float] | None) -> Cooldown | None:
    """The cool-down that was asked for as two numbers. Raises ValueError when they make no sense."""
    if seconds is None:
        return None
    try:
        first, most = (timedelta(seconds=float(number)) for number in seconds)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"a cool-down is two numbers of seconds, the first and the longest; not {seconds!r}."
        ) from None
    return Cooldown(first, most)


def parser() -> argparse.ArgumentParser:
    """What reads the command line."""
    found = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np NUM_PROC [flags] command...",
        description="Runs a command on several ranks. Where Horovod is absent, its names are served.",
        allow_abbrev=False,
    )
    add = found.add_argument
    add("-v", "--version", action="version", version=__version__)
    add("-np", "--num-proc", dest="num_proc", type=int, help="number of ranks")
    add("-cb", "--check-build", action="store_true", help="print what this build can do, and exit")
    add("--verbose", action="store_true", help="say what is started")
    add("--config-file", metavar="FILE", help="YAML, in Horovod's groups; flags win over it")
    add("--output-filename", metavar="DIR", help="write each rank's output to DIR/rank.N/stdout and stderr")
    add(
        *("-prefix-timestamp", "--prefix-output-with-timestamp"),
        action="store_true",
        help="show the time in front of each line of output",
    )
    add("--start-timeout", type=_positive, metavar="SECONDS", help="how long ranks wait for one another in init()")
    _add_hosts(found.add_argument_group("hosts"))
    _add_elastic(found.add_argument_group("elastic jobs"))
    _add_settings(found.add_argument_group("settings of the ranks"))
    for flag, (count, reason) in _WITHOUT_EFFECT.items():
        add(flag, action=_Explain, nargs=count, dest="explained", const=reason, help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help="program and arguments")
    return found


def _add_hosts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-H", "--hosts", help="host:slots,host:slots; ranks fill them in this order (default: this host)")
    add("-hostfile", "--hostfile", metavar="FILE", help="the same in lines: host slots=n")
    add("-p", "--ssh-port", type=_positive, metavar="PORT", help="of sshd on other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="the private key for other hosts")
    add(
        *("--network-interfaces", "--network-interface"),
        metavar="NAMES",
        help="names with commas; ranks of several hosts talk over the first that each host has",
    )


def _add_elastic(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--min-np", "--min-num-proc", dest="min_np", type=_positive, metavar="N", help="go on with so few ranks")
    add(
        "--max-np",
        "--max-num-proc",
        dest="max_np",
        type=_positive,
        metavar="N",
        help="as many as there are slots, up to N",
    )
    add("--host-discovery-script", metavar="COMMAND", help="prints host:slots lines; asked again and again")
    add("--slots-per-host", type=_positive, metavar="N", help="of hosts that the script names without a number (1)")
    add("--reset-limit", type=_not_negative, metavar="N", help="how often the job may be made of other ranks")
    add("--elastic-timeout", type=_positive, metavar="SECONDS", help="how long to wait for a rank, or a host (600)")
    add(
        "--blacklist-cooldown-range",
        type=_positive,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="use a host that has failed again after MIN seconds, then twice as many, at most MAX (never)",
    )


def _add_settings(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--fusion-threshold-mb", type=_not_negative, metavar="MB", help="small allreduces run as one up to this size")
    add("--cache-capacity", type=_not_negative, metavar="NAMES", help="names whose agreement is remembered")
    add("--thread-affinity", metavar="CORES", help="of the engine's threads, one for each local rank: 0,2,4")
    add("--gloo-timeout-seconds", type=_positive, metavar="SECONDS", help="as --start-timeout, where that is not given")
    add("--hierarchical-allreduce", dest="hierarchical_allreduce", action="store_true", default=None)
    add("--no-hierarchical-allreduce", dest="hierarchical_allreduce", action="store_false", default=None)
    add("--autotune", dest="autotune", action="store_true", default=None, help="try parameters while the job runs")
    add("--no-autotune", dest="autotune", action="store_false", default=None)
    add("--autotune-log-file", metavar="FILE", help="CSV of what was tried")
    add("--autotune-warmup-samples", type=_not_negative, metavar="N")
    add("--autotune-steps-per-sample", type=_positive, metavar="N")
    add("--autotune-bayes-opt-max-samples", type=_positive, metavar="N")
    add("--timeline-filename", metavar="FILE", help="a Chrome trace of every op, a file for each rank")
    add("--timeline-mark-cycles", dest="timeline_mark_cycles", action="store_true", default=None)
    add("--no-timeline-mark-cycles", dest="timeline_mark_cycles", action="store_false", default=None)
    add("--stall-check", dest="stall_check", action="store_true", default=None, help="on unless switched off")
    add("--no-stall-check", dest="stall_check", action="store_false", default=None, help="never tell of who is late")
    add("--stall-check-warning-time-seconds", type=_not_negative, metavar="SECONDS")
    add("--stall-check-shutdown-time-seconds", type=_not_negative, metavar="SECONDS")
    add("--log-level", type=str.upper, choices=["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"])
    add("--log-without-timestamp", "--log-hide-timestamp", dest="log_hide_time", action="store_true", default=None)
    add("--log-with-timestamp", "--no-log-hide-timestamp", dest="log_hide_time", action="store_false", default=None)


class _Explain(argparse.Action):
    """Accepts a flag that has no effect and notes why."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if self.const:
            namespace.explained = [*(namespace.explained or []), (option, self.const)]


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
