"""``python -m spark_estimator``: doctor, explain, demo, env, run, ranks, timeline, compat."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys

from spark_estimator.console import end_with_reader

USAGE = """usage: python -m spark_estimator COMMAND [ARGUMENTS]

  doctor   check what a job needs on this machine, and show how to fix each problem
  explain  the cause and the remedy of an error, by the code at the end of its message
  demo     train on handwritten digits with two ranks in a local Spark session
  env      show every environment variable: current value and its source, default, unit and effect
  run      run a program on several ranks; same as horovodrun
  ranks    list the ranks that run on this host, and how to look into one
  timeline merge the timeline files of a job's ranks into one file
  compat   make `import horovod`, `sparkdl` and `petastorm` import spark_estimator: enable, disable, status

`python -m spark_estimator COMMAND --help` shows the arguments of a command."""

# The module of each command has main(argv) -> exit status; it is imported when the command runs.
COMMANDS = {
    "doctor": "spark_estimator.doctor",
    "explain": "spark_estimator.explain",
    "demo": "spark_estimator.demo",
    "run": "spark_estimator.launch.cli.main",
    "ranks": "spark_estimator.observe.rank_processes",
    "timeline": "spark_estimator.observe.timeline",
    "compat": "spark_estimator.compat.environment",
}


@end_with_reader
def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit status, or 2 for an unknown command."""
    command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in {"-h", "--help", "help"}:
        print(USAGE)
        return 0
    if command == "--version":
        from spark_estimator import __version__

        print(__version__)
        return 0
    if command == "env":
        return print_settings(arguments)
    if command not in COMMANDS:
        print(f"{USAGE}\n\nunknown command: {command!r}", file=sys.stderr)
        return 2
    try:
        status: int | None = importlib.import_module(COMMANDS[command]).main(arguments)
    except KeyboardInterrupt as interruption:
        print(f"spark_estimator: {str(interruption) or 'interrupted'}.", file=sys.stderr)
        return 128 + signal.SIGINT
    return status or 0


def make_env_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line of ``env``."""
    return argparse.ArgumentParser(
        prog="python -m spark_estimator env",
        description="Print every environment variable that spark_estimator reads, with its value and the source of the "
        "value; then the environment that a worker gets. Values that depend on the cores are those of a job of "
        "HOROVOD_LOCAL_SIZE ranks (default: 1) on this host only.",
    )


def print_settings(arguments: list[str]) -> int:
    """Print the settings of this process; return the exit status, 1 for an invalid value."""
    from spark_estimator.collectives.cores import count_available_cores, decide_settings
    from spark_estimator.collectives.rendezvous import Topology
    from spark_estimator.env import Settings
    from spark_estimator.launch.job.environment import describe_choices

    make_env_parser().parse_args(arguments)
    try:
        settings = Settings.read()
        topology = Topology.of(["this host"] * (settings.launched_local_size or 1), 0)
        print(settings.describe(decide_settings(settings, topology, count_available_cores())))
        print("\n" + describe_choices(os.environ, topology.local_size))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
