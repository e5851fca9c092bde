"""Times training steps without communication, with ``DistributedOptimizer`` and with DDP over gloo, interleaved.

``python -m benchmarks.training [--np 2] [--model mlp,resnet50,transformer]`` prints a line for each
model: medians in microseconds of the slowest rank's step. The *exposed* time of a library is its step time minus that
of the step without communication. Before the timing, the parameters after three steps are compared with those of one
process that trains on the batches of all ranks.

Models: mlp, 200 parameters of 64 and 64 x 64; resnet50, the 161 shapes of ResNet-50's parameters (25.6 million, 102 MB)
with almost no computation; transformer, 6 encoder layers of width 256 on 4 sequences of 64. With ``--model``, also:
many, 20,000 parameters of 64 with almost no computation; llama, a causal language model of transformers with 4 layers
of width 256 and random numbers, fine-tuned on 2 texts of 128 tokens; lora, an adapter of peft's for it. The last two
have a column ``group``: DDP over this package's process group, which a Trainer of transformers uses in its jobs.

``--lightning`` adds the same steps in Lightning's Trainer: without communication, with ``strategy="horovod"``, and with
Lightning's DDP over gloo. A step of the Trainer lasts from one batch to the request for the next.

``--tensorflow`` adds the resnet50 step in TensorFlow: without communication, with ``DistributedGradientTape``, and with
``MultiWorkerMirroredStrategy`` over its ring (``mwms``); and with Keras' ``train_on_batch`` on TensorFlow, without
communication and with ``DistributedOptimizer``. ``docs/explanation/performance.md`` documents their lower bounds.

``--busy 2`` and ``--jvm`` run other programs beside the ranks, as executors have them; ``--quota 1`` limits the
processor time of all ranks together, as containers do.

Ranks have the environment of workers (``launch/job/environment.py``), in which malloc keeps freed memory; otherwise the
system would spend half of a CPU step on mapping memory for gradients again. ``--default-malloc`` disables this for all
libraries.
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

from benchmarks import neighbours, programs, tables
from benchmarks.command_line import ended_by_signals, list_of, positive
from benchmarks.interleaved import BenchmarkError, Figure, Form, Group, Line, Subject, measure
from benchmarks.tables import Ratio
from benchmarks.training_steps import MANY
from spark_estimator.collectives.rendezvous import make_local_rendezvous
from spark_estimator.console import end_with_reader

#: Bytes of each model's gradients.
MODELS = {
    "mlp": 1_664_000,
    "resnet50": 102_228_128,
    "transformer": 18_954_240,
    "many": MANY * 64 * 4,
    "llama": 16_851_968,
    "lora": 131_072,
}
_BY_DEFAULT = ("mlp", "resnet50", "transformer")
_FINE_TUNED = ("llama", "lora")
_MODULE = "benchmarks.training"
_COLUMNS = ("none", "ours", "ddp", "exposed", "ddp exposed")
_RATIOS = (Ratio("ours", "none"), Ratio("ddp", "none"), Ratio("ddp exposed", "exposed"))
_FINE_TUNING_RATIOS = (Ratio("ours", "ddp"), Ratio("group", "ddp"))
_LIGHTNING = ("lightning_none", "lightning_ours", "lightning_ddp")
_LIGHTNING_RATIOS = (Ratio("lightning_ours", "ours"), Ratio("lightning_ddp", "lightning_ours"))
_TENSORFLOW = ("tf_none", "tf_ours", "tf_mwms", "keras_none", "keras_ours")
#: Column of an exposed time -> the column with communication, and the one without.
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
    """Adds the exposed time of each library to the line; it is at least 0.1 microseconds."""
    figures = dict(line.figures)
    for column, (name, alone) in _EXPOSED.items():
        if name in figures:
            figures[column] = Figure.computed(max(0.1, figures[name].us - figures[alone].us))
    return replace(line, figures=figures)


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs the ranks on this host, and prints the table."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m {_MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=positive, default=2, help="ranks (default 2)")
    parser.add_argument("--model", type=list_of(list(MODELS)), default=_BY_DEFAULT, help=", ".join(MODELS))
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each library and model (default 8)")
    parser.add_argument("--tcp", action="store_true", help="use loopback TCP instead of shared memory")
    parser.add_argument("--lightning", action="store_true", help="also measure Lightning's Trainer")
    parser.add_argument("--tensorflow", action="store_true", help="also measure resnet50 in TensorFlow and Keras")
    neighbours.add_options(parser)
    parser.add_argument("--default-malloc", action="store_true", help="malloc returns freed memory to the system")
    parser.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE; - for standard output")
    options = parser.parse_args(words)
    screen = sys.stderr if str(options.json) == "-" else sys.stdout
    facts = programs.machine()
    channel = "loopback TCP" if options.tcp else "shared memory"
    title = f"{options.np} ranks on {facts['cores']} cores ({facts['processor']}), {channel}{neighbours.title(options)}"
    print(f"{title}; us per step, slowest rank", file=screen, flush=True)
    lines = []
    columns: tuple[str, ...] = _COLUMNS
    ratios: tuple[Ratio, ...] = _RATIOS
    fine_tuned = not set(_FINE_TUNED).isdisjoint(options.model)
    if fine_tuned:
        columns, ratios = (*columns, "group"), (*ratios, *_FINE_TUNING_RATIOS)
    if options.lightning:
        columns, ratios = (*columns, *_LIGHTNING), (*ratios, *_LIGHTNING_RATIOS)
    if options.tensorflow:
        columns, ratios = (*columns, *_TENSORFLOW, *_OF_TENSORFLOW), (*ratios, *_TENSORFLOW_RATIOS)
    try:
        with ended_by_signals(), neighbours.beside(options), contextlib.ExitStack() as groups:
            # In the same processes: with thousands of parameters, Python's garbage collector takes longer the more
            # objects a process has.
            group = groups.enter_context(_group(options))
            subjects = [Subject(name, group, name) for name in ("none", "ours", "ddp")]
            if options.lightning:
                # Without torch.distributed: a Trainer that finds it initialized exchanges signals over it in each step.
                without_gloo = groups.enter_context(_group(options, gloo=False))
                subjects += [
                    Subject(name, group if name.endswith("ddp") else without_gloo, name) for name in _LIGHTNING
                ]
            with_ours = [Subject("group", groups.enter_context(_group(options, gloo=False)), "group")] * fine_tuned
            others = []
            if options.tensorflow and "resnet50" in options.model:
                ours, mwms = (groups.enter_context(_tensorflow_group(options, name)) for name in ("ours", "mwms"))
                others = [Subject(name, mwms if name == "tf_mwms" else ours, name) for name in _TENSORFLOW]
            for model in options.model:
                step = Step(model, "float32", MODELS[model])
                more = {"resnet50": others, **dict.fromkeys(_FINE_TUNED, with_ours)}.get(model, [])
                measured = [*subjects, *more]
                lines.append(exposed(measure(step, measured, options.seconds, block_seconds=0.4)))
                rows = tables.cells(lines, columns, ratios)
                if not options.markdown:
                    print(tables.text([rows[0], rows[-1]] if len(lines) == 1 else rows[-1:], rows[0]), file=screen)
                if options.np > 1:
                    answers = group.ask(f"hooks ours {model}")
                    spent = statistics.median(float(answer.removeprefix("hooks ")) for answer in answers)
                    print(f"  in hooks: {spent / 1e3:.2f} us per parameter", file=screen, flush=True)
    except BenchmarkError as error:
        raise SystemExit(f"benchmark: {error}") from error
    if options.markdown:
        print(tables.markdown(tables.cells(lines, columns, ratios)), file=screen)
    if options.json is not None:
        command = shlex.join(["python", "-m", _MODULE, *words])
        results = tables.plain(lines)
        tables.write_json(options.json, {"command": command, "machine": facts, "ranks": options.np, "results": results})


def _group(options: argparse.Namespace, gloo: bool = True) -> Group:
    with socket.socket() as probe:  # gloo needs a free port
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    return programs.python_group(
        "training",
        make_local_rendezvous(options.np),
        gloo=address if gloo else None,
        module="benchmarks.training_rank",
        environment=_environment(options),
    )


def _tensorflow_group(options: argparse.Namespace, name: str) -> Group:
    return programs.python_group(
        f"TensorFlow ({name})",
        make_local_rendezvous(options.np),
        module="benchmarks.training_tensorflow",
        environment=_environment(options),
    )


def _environment(options: argparse.Namespace) -> dict[str, str]:
    environment = {"SPARK_ESTIMATOR_WORKER_MALLOC": "system" if options.default_malloc else "keep"}
    if options.tcp:
        environment["SPARK_ESTIMATOR_SHARED_MEMORY"] = "0"
    return environment


if __name__ == "__main__":
    main()
