"""Times a training step without communication, with ``DistributedOptimizer`` and with DDP over gloo, in turns.

``python -m spark_estimator.benchmarks.training [--np 2] [--model mlp,resnet50,transformer]`` prints a line for each
model: medians in microseconds of the slowest rank's step. What a library *exposes* is its step less the step without
communication. Parameters after three steps are compared with those of one process on the joint batch first.

Models: mlp, 200 parameters of 64 and 64 x 64; resnet50, the 161 shapes of ResNet-50's parameters (25.6 million, 102 MB)
with next to no computation; transformer, 6 encoder layers of width 256 on 4 sequences of 64.

Ranks have the environment that launchers give to workers (``launch/worker_environment.py``): they keep freed memory, or
else half of a CPU step is the system mapping gradients in again; --default-malloc leaves that out, for all alike.
"""

from __future__ import annotations

import argparse
import shlex
import socket
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spark_estimator.benchmarks import programs, tables
from spark_estimator.benchmarks.command_line import ended_by_signals, list_of, positive
from spark_estimator.benchmarks.tables import Ratio
from spark_estimator.benchmarks.turns import BenchmarkError, Figure, Form, Group, Line, Subject, measure
from spark_estimator.collectives.rendezvous import local_rendezvous
from spark_estimator.console import ends_with_its_reader

#: Bytes of each model's gradients.
MODELS = {"mlp": 1_664_000, "resnet50": 102_228_128, "transformer": 18_954_240}
_MODULE = "spark_estimator.benchmarks.training"
_COLUMNS = ("none", "ours", "ddp", "exposed", "ddp exposed")
_RATIOS = (Ratio("ours", "none"), Ratio("ddp", "none"), Ratio("ddp exposed", "exposed"))


class Step(Form):
    """One training step of a model."""

    @property
    def batch(self) -> int:
        """One step is one sample."""
        return 1


def exposed(line: Line) -> Line:
    """The line with what each library exposes as further figures; at least a tenth of a microsecond."""
    figures = dict(line.figures)
    for name, column in (("ours", "exposed"), ("ddp", "ddp exposed")):
        if name in figures:
            figures[column] = Figure.computed(max(0.1, figures[name].us - figures["none"].us))
    return replace(line, figures=figures)


@ends_with_its_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs the ranks on this host, prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument("--model", type=list_of(list(MODELS)), default=tuple(MODELS), help=", ".join(MODELS))
    parser.add_argument("--seconds", type=float, default=8.0, help="for each library and model (default 8)")
    parser.add_argument("--tcp", action="store_true", help="without shared memory, as between hosts")
    parser.add_argument("--default-malloc", action="store_true", help="freed memory goes back to the system")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    facts = programs.machine()
    channel = "loopback TCP" if options.tcp else "shared memory"
    title = f"{options.np} ranks on {facts['cores']} cores ({facts['processor']}), {channel}; us a step, slowest rank"
    print(title, file=screen, flush=True)
    lines = []
    try:
        with ended_by_signals(), _group(options) as group:
            subjects = [Subject(name, group, name) for name in ("none", "ours", "ddp")]
            for model in options.model:
                step = Step(model, "float32", MODELS[model])
                lines.append(exposed(measure(step, subjects, options.seconds, block_seconds=0.4)))
                rows = tables.cells(lines, _COLUMNS, _RATIOS)
                if not options.markdown:
                    print(tables.text([rows[0], rows[-1]] if len(lines) == 1 else rows[-1:], rows[0]), file=screen)
                if options.np > 1:
                    answers = group.ask(f"hooks ours {model}")
                    spent = statistics.median(float(answer.removeprefix("hooks ")) for answer in answers)
                    print(f"  in hooks: {spent / 1e3:.2f} us a parameter", file=screen, flush=True)
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    if options.markdown:
        print(tables.markdown(tables.cells(lines, _COLUMNS, _RATIOS)), file=screen)
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        results = tables.plain(lines)
        tables.write_json(options.json, {"command": command, "machine": facts, "ranks": options.np, "results": results})


def _group(options: argparse.Namespace) -> Group:
    with socket.socket() as probe:  # gloo wants a port that is free
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    environment = {"SPARK_ESTIMATOR_WORKER_MALLOC": "system" if options.default_malloc else "keep"}
    if options.tcp:
        environment["SPARK_ESTIMATOR_SHARED_MEMORY"] = "0"
    return programs.python_group(
        "training",
        local_rendezvous(options.np),
        gloo=address,
        module="spark_estimator.benchmarks.training_rank",
        environment=environment,
    )


if __name__ == "__main__":
    main()
