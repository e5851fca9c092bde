"""Commands and timing of training steps, shared by the ranks of all frameworks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

#: Steps at the beginning of a block that are not timed.
UNCOUNTED = 2
CHECKED_STEPS = 3
#: Parameters of the model "many".
MANY = 20_000
#: Relative tolerance after the checked steps: float32 sums are in another order than in the reference.
TOLERANCE = 1e-4


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters (He et al. 2015), in order."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, before, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
            before = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def timed(step: Callable[[], None], samples: int, barrier: Callable[[], Any]) -> list[float]:
    """The nanoseconds of each step; a barrier before each step synchronizes the ranks."""
    times: list[float] = []
    for _ in range(UNCOUNTED + samples):
        barrier()
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return times[UNCOUNTED:]


class Answers:
    """Answers commands. It keeps the trainings of the current model, so that blocks of a variant use the same memory.

    Args:
        make: (variant, name) -> a training of the model, ready to take steps.
        check: (variant, name) -> "ok", or a description of the wrong values.
        block: (training, name, samples) -> nanoseconds of each step.
        others: verb -> function of a training, for further commands.
    """

    def __init__(
        self,
        make: Callable[[str, str], Any],
        check: Callable[[str, str], str],
        block: Callable[[Any, str, int], list[float]],
        others: Mapping[str, Callable[[Any], str]] | None = None,
    ) -> None:
        self._make, self._check, self._block, self._others = make, check, block, others or {}
        self._name = ""
        self._ready: dict[str, Any] = {}

    def answer(self, line: str) -> str:
        """The answer to one command, without the end of line."""
        verb, variant, name, *rest = line.split()
        try:
            if name != self._name:
                self._ready.clear()
                self._name = name
            if verb == "check":
                return self._check(variant, name)
            if variant not in self._ready:
                self._ready[variant] = self._make(variant, name)
            training = self._ready[variant]
            if verb in self._others:
                return self._others[verb](training)
            return "times " + " ".join(f"{time:.0f}" for time in self._block(training, name, int(rest[-1])))
        except Exception as error:
            return "failed " + " ".join(f"{type(error).__name__}: {error}".split())
