"""Times what the malloc settings of workers save: the processor time of a training step without communication.

``python -m benchmarks.malloc [--model mlp,resnet50,transformer] [--rounds 5] [--seconds 1]`` starts a process with one
thread for each choice of settings, and lets the processes take steps in turns. It prints the medians over the rounds:
the processor time of a step, and its ratio to that with glibc's defaults; and the peak of resident memory. Processor
time does not count waiting for other programs, but they still disturb caches. The losses after the first three steps
must be equal in all processes.

The models are those of ``benchmarks.training``. Settings: *default*, glibc's; *kept*, freed memory stays with the
process; *huge pages*, transparent huge pages; *both*, which workers get (``launch/job/environment.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.command_line import list_of, positive
from benchmarks.interleaved import BenchmarkError
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment

MODELS = ("mlp", "resnet50", "transformer")
_HUGE_PAGES = "GLIBC_TUNABLES"
_CHECKED_STEPS = 3


def settings() -> dict[str, dict[str, str]]:
    """The name of each choice of settings, and its variables."""
    worker = make_worker_environment({}, {}, decide_host_threads(1))
    both = {name: value for name, value in worker.items() if name.startswith("MALLOC_") or name == _HUGE_PAGES}
    kept = {name: value for name, value in both.items() if name != _HUGE_PAGES}
    return {"default": {}, "kept": kept, "huge pages": {_HUGE_PAGES: both[_HUGE_PAGES]}, "both": both}


class Process:
    """A process that takes training steps when it is asked to.

    Args:
        model: a key of `MODELS`.
        variables: its settings of malloc.
    """

    def __init__(self, model: str, variables: dict[str, str]) -> None:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
        environment.pop(_HUGE_PAGES, None)
        environment.update(variables, OMP_NUM_THREADS="1")
        command = [sys.executable, "-m", "benchmarks.malloc", "--process", model]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.milliseconds: list[float] = []
        self.loss, self.peak_megabytes = 0.0, 0.0

    def take(self, steps: int) -> None:
        """Takes steps, and notes their mean processor time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        words = self._process.stdout.readline().split()
        if len(words) != 3:
            raise BenchmarkError("a process of the benchmark has ended; see its output above")
        milliseconds, self.loss, self.peak_megabytes = map(float, words)
        self.milliseconds.append(milliseconds)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def measured(model: str, rounds: int, seconds: float) -> dict[str, Process]:
    """The processes of a model, after the rounds.

    Raises:
        BenchmarkError: their losses differ, or one has ended.
    """
    with contextlib.ExitStack() as stack:
        processes = {name: Process(model, variables) for name, variables in settings().items()}
        for process in processes.values():
            stack.callback(process.close)
            process.take(_CHECKED_STEPS)
        if len({process.loss for process in processes.values()}) > 1:
            raise BenchmarkError(f"{model}: the losses differ between the settings of malloc")
        steps = max(1, round(1000 * seconds / processes["default"].milliseconds[0]))
        for process in processes.values():
            process.milliseconds.clear()
        for _ in range(rounds):
            for process in processes.values():
                process.take(steps)
    return processes


def take_steps(model: str) -> None:
    """The program of a process: for each line with a number, that many steps, and a line with what they took."""
    import torch

    import spark_estimator.torch as hvd
    from benchmarks.training_rank import Training, inputs_of, squared

    torch.set_num_threads(1)
    hvd.init()
    training, inputs = Training("none", model), inputs_of(model, 0, 0)
    for line in sys.stdin:
        began = time.process_time()
        for _ in range(int(line)):
            training.step()
        milliseconds = 1000 * (time.process_time() - began) / int(line)
        with torch.no_grad():
            loss = squared(training.model(inputs)).item()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(milliseconds, repr(loss), peak, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints a line for each model and choice of settings."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.malloc", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=list_of(MODELS), default=MODELS, help=", ".join(MODELS))
    parser.add_argument("--rounds", type=positive, default=5, help="turns of each process (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time of a turn (default 1)")
    parser.add_argument("--process", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.process:
        take_steps(options.process)
        return
    print(f"{'model':<12} {'settings':<11} {'ms a step':>10} {'ratio':>6} {'peak MiB':>9}")
    for model in options.model:
        processes = measured(model, options.rounds, options.seconds)
        defaults = processes["default"].milliseconds
        for name, process in processes.items():
            pairs = zip(process.milliseconds, defaults, strict=True)
            ratio = statistics.median(milliseconds / default for milliseconds, default in pairs)
            milliseconds = statistics.median(process.milliseconds)
            print(f"{model:<12} {name:<11} {milliseconds:>10.2f} {ratio:>6.2f} {process.peak_megabytes:>9.0f}")


if __name__ == "__main__":
    main()
