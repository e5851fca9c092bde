"""``python -m spark_estimator``: doctor, demo, env, run, timeline, compat."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys

from spark_estimator.console import ends_with_its_reader

USAGE = """usage: python -m spark_estimator VERB [ARGUMENTS]

  doctor   check everything that a job will need on this machine, and say how to mend what is missing
  demo     train on handwritten digits with two ranks in a local Spark session
  env      every environment variable: what is in force here and why, its default, unit and effect
  run      run a program as several ranks: the same as horovodrun
  timeline join the timelines that the ranks of a job wrote into one
  compat   let `import horovod` and `import sparkdl` lead here: enable, disable, status

`python -m spark_estimator VERB --help` tells more."""

# Each verb's module has main(argv) -> exit status; it is imported when the verb is used.
VERBS = {
    "doctor": "spark_estimator.doctor",
    "demo": "spark_estimator.demo",
    "run": "spark_estimator.launch.cli.main",
    "timeline": "spark_estimator.observe.timeline",
    "compat": "spark_estimator.compat.environment",
}


@ends_with_its_reader
def main(argv: list[str] | None = None) -> int:
    """Runs one verb; returns its exit status, 2 when there is no such verb."""
    verb, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if verb in {"-h", "--help", "help"}:
        print(USAGE)
        return 0
    if verb == "--version":
        from spark_estimator import __version__

        print(__version__)
        return 0
    if verb == "env":
        return env(arguments)
    if verb not in VERBS:
        print(f"{USAGE}\n\nno such verb: {verb!r}", file=sys.stderr)
        return 2
    try:
        status: int | None = importlib.import_module(VERBS[verb]).main(arguments)
    except KeyboardInterrupt as interruption:
        print(f"spark_estimator: {str(interruption) or 'interrupted'}.", file=sys.stderr)
        return 128 + signal.SIGINT
    return status or 0


def env(arguments: list[str]) -> int:
    """Prints the settings as this process would read them; a bad value is one sentence and status 1."""
    from spark_estimator.collectives.cores import available_cores, decisions
    from spark_estimator.collectives.rendezvous import Topology
    from spark_estimator.env import Settings
    from spark_estimator.launch.job.environment import description

    argparse.ArgumentParser(
        prog="python -m spark_estimator env",
        description="Print every environment variable that is read, what is in force, and why; then what a worker is "
        "started with. What a job decides from its cores is shown for a job on this host alone, of HOROVOD_LOCAL_SIZE "
        "ranks (default: 1).",
    ).parse_args(arguments)
    try:
        settings = Settings.read()
        topology = Topology.of(["this host"] * (settings.launched_local_size or 1), 0)
        print(settings.describe(decisions(settings, topology, available_cores())))
        print("\n" + description(os.environ, topology.local_size))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
