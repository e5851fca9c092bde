"""Times a training step without communication, with ``DistributedOptimizer`` and with DDP over gloo, in turns.

``python -m spark_estimator.benchmarks.training [--np 2] [--model mlp,resnet50,transformer]`` prints a line for each
model: medians in microseconds of the slowest rank's step. What a library *exposes* is its step less the step without
communication. Parameters after three steps are compared with those of one process on the joint batch first.

Models: mlp, 200 parameters of 64 and 64 x 64; resnet50, the 161 shapes of ResNet-50's parameters (25.6 million, 102 MB)
with next to no computation; transformer, 6 encoder layers of width 256 on 4 sequences of 64.

``--lightning`` adds the same steps by Lightning's Trainer: without communication, with ``strategy="horovod"``, with its
own DDP over gloo. A Trainer's step is all that it does from one batch to the next.

``--tensorflow`` adds the resnet50 step by TensorFlow: without communication, with ``DistributedGradientTape``,
with ``MultiWorkerMirroredStrategy`` over its ring (``mwms``); and by Keras' ``train_on_batch`` on TensorFlow, alone and
with ``DistributedOptimizer``. What they cannot fall below stands in ``spark_estimator/README.md``.

Ranks have the environment that launchers give to workers (``launch/job/environment.py``): they keep freed memory, or
else half of a CPU step is the system mapping gradients in again; --default-malloc leaves that out, for all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import socket
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spark_estimator.benchmarks import programs, tables
from spark_estimator.benchmarks.command_line import ended_by_signals, list_of, positive
from spark_estimator.benchmarks.interleaved import BenchmarkError, Figure, Form, Group, Line, Subject, measure
from spark_estimator.benchmarks.tables import Ratio
from spark_estimator.collectives.rendezvous import local_rendezvous
from spark_estimator.console import ends_with_its_reader

#: Bytes of each model's gradients.
MODELS = {"mlp": 1_664_000, "resnet50": 102_228_128, "transformer": 18_954_240}
_MODULE = "spark_estimator.benchmarks.training"
_COLUMNS = ("none", "ours", "ddp", "exposed", "ddp exposed")
_RATIOS = (Ratio("ours", "none"), Ratio("ddp", "none"), Ratio("ddp exposed", "exposed"))
_LIGHTNING = ("lightning_none", "lightning_ours", "lightning_ddp")
_LIGHTNING_RATIOS = (Ratio("lightning_ours", "ours"), Ratio("lightning_ddp", "lightning_ours"))
_TENSORFLOW = ("tf_none", "tf_ours", "tf_mwms", "keras_none", "keras_ours")
#: What is exposed, by the column that it is a part of, and the one without communication.
_EXPOSED = {
    "exposed": ("ours", "none"),
    "ddp exposed": ("ddp", "none"),
    "tf exposed": ("tf_ours", "tf_none"),
    "mwms exposed": ("tf_mwms", "tf_none"),
    "keras exposed": ("keras_ours", "keras_none"),
}
_OF_TENSORFLOW = tuple(name for name, pair in _EXPOSED.items() if pair[0] in _TENSORFLOW)
_TENSORFLOW_RATIOS = tuple(Ratio(name, "exposed") for name in _OF_TENSORFLOW)


class Step(Form):
    """One training step of a model."""

    @property
    def batch(self) -> int:
        """One step is one sample."""
        return 1


def exposed(line: Line) -> Line:
    """The line with what each library exposes as further figures; at least a tenth of a microsecond."""
    figures = dict(line.figures)
    for column, (name, alone) in _EXPOSED.items():
        if name in figures:
            figures[column] = Figure.computed(max(0.1, figures[name].us - figures[alone].us))
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
    parser.add_argument("--lightning", action="store_true", help="the same by Lightning's Trainer, too")
    parser.add_argument("--tensorflow", action="store_true", help="resnet50 by TensorFlow and Keras, too")
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
    columns: tuple[str, ...] = _COLUMNS
    ratios: tuple[Ratio, ...] = _RATIOS
    if options.lightning:
        columns, ratios = (*columns, *_LIGHTNING), (*ratios, *_LIGHTNING_RATIOS)
    if options.tensorflow:
        columns, ratios = (*columns, *_TENSORFLOW, *_OF_TENSORFLOW), (*ratios, *_TENSORFLOW_RATIOS)
    try:
        with ended_by_signals(), contextlib.ExitStack() as groups:
            # Without torch.distributed, over which a Trainer that finds it asks in each step for signals.
            group = groups.enter_context(_group(options, gloo=False))
            with_gloo = groups.enter_context(_group(options))
            names = ["none", "ours", "ddp", *(_LIGHTNING if options.lightning else ())]
            subjects = [Subject(name, with_gloo if name.endswith("ddp") else group, name) for name in names]
            others = []
            if options.tensorflow and "resnet50" in options.model:
                ours, mwms = (groups.enter_context(_tensorflow_group(options, name)) for name in ("ours", "mwms"))
                others = [Subject(name, mwms if name == "tf_mwms" else ours, name) for name in _TENSORFLOW]
            for model in options.model:
                step = Step(model, "float32", MODELS[model])
                taking = [*subjects, *(others if model == "resnet50" else [])]
                lines.append(exposed(measure(step, taking, options.seconds, block_seconds=0.4)))
                rows = tables.cells(lines, columns, ratios)
                if not options.markdown:
                    print(tables.text([rows[0], rows[-1]] if len(lines) == 1 else rows[-1:], rows[0]), file=screen)
                if options.np > 1:
                    answers = group.ask(f"hooks ours {model}")
                    spent = statistics.median(float(answer.removeprefix("hooks ")) for answer in answers)
                    print(f"  in hooks: {spent / 1e3:.2f} us a parameter", file=screen, flush=True)
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    if options.markdown:
        print(tables.markdown(tables.cells(lines, columns, ratios)), file=screen)
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        results = tables.plain(lines)
        tables.write_json(options.json, {"command": command, "machine": facts, "ranks": options.np, "results": results})


def _group(options: argparse.Namespace, gloo: bool = True) -> Group:
    with socket.socket() as probe:  # gloo wants a port that is free
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    return programs.python_group(
        "training",
        local_rendezvous(options.np),
        gloo=address if gloo else None,
        module="spark_estimator.benchmarks.training_rank",
        environment=_environment(options),
    )


def _tensorflow_group(options: argparse.Namespace, name: str) -> Group:
    return programs.python_group(
        f"TensorFlow ({name})",
        local_rendezvous(options.np),
        module="spark_estimator.benchmarks.training_tensorflow",
        environment=_environment(options),
    )


def _environment(options: argparse.Namespace) -> dict[str, str]:
    environment = {"SPARK_ESTIMATOR_WORKER_MALLOC": "system" if options.default_malloc else "keep"}
    if options.tcp:
        environment["SPARK_ESTIMATOR_SHARED_MEMORY"] = "0"
    return environment


if __name__ == "__main__":
    main()
