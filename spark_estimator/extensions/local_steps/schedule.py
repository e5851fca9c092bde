"""Which parameters are exchanged together, and after which steps: pure functions of what all ranks know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ExchangeSchedule:
    """When each fragment is sent, and when its result is used. Steps count from 1.

    Each fragment is sent every `inner_steps` steps. Where there are several, their turns are spread over these steps,
    so that the network is used evenly.

    Attributes:
        inner_steps: between two exchanges of a fragment.
        fragments: how many there are.
        delay: steps that a rank makes while a fragment is in flight; 0: it waits.

    Raises:
        ValueError: a number is out of range.
    """

    inner_steps: int
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        for name, least in (("inner_steps", 1), ("fragments", 1), ("delay", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r} must be a whole number, {least} or more.")
        if self.delay >= self.inner_steps:
            raise ValueError(f"delay={self.delay} must be less than inner_steps={self.inner_steps}.")
        if self.fragments > self.inner_steps:
            raise ValueError(f"fragments={self.fragments} must be at most inner_steps={self.inner_steps}.")

    def find_sent(self, step: int) -> list[int]:
        """Return the fragments that are sent after a step."""
        return [number for number in range(self.fragments) if (step - self._find_turn(number)) % self.inner_steps == 0]

    def find_taken(self, step: int) -> list[int]:
        """Return the fragments whose results are used after a step, if they are in flight."""
        return self.find_sent(step - self.delay)

    def _find_turn(self, number: int) -> int:
        return (number + 1) * self.inner_steps // self.fragments


def divide_parameters(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide parameters, in their order, into at most `count` fragments of nearly equal size; none is empty.

    Args:
        sizes: of each parameter.
        count: how many fragments are wanted.

    Returns:
        Positions of the parameters of each fragment.
    """
    total, done = sum(sizes), 0
    fragments: list[list[int]] = [[] for _ in range(count)]
    for position, size in enumerate(sizes):
        # By the middle of a parameter, so that a large one does not leave the fragments beside it empty for nothing.
        middle = done + size / 2
        fragments[min(count - 1, int(count * middle / total)) if total else 0].append(position)
        done += size
    return [fragment for fragment in fragments if fragment]
