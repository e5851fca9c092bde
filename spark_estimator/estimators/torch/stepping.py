"""A step with the learning rate of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


class Stepping:
    """The optimizer as a user's step sees it: its step() has the learning rate of all ranks.

    Attributes:
        pending: calls of a function with nine arguments since the last step.
    """

    def __init__(self, optimizer: Any, step: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._step = step
        self.pending = 0

    def step(self) -> None:
        self._step()
        # A function with nine arguments steps before the backward pass of the call in which it does.
        self.pending = min(self.pending, 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


@contextlib.contextmanager
def joint_rate(optimizer: Any, ranks: int) -> Iterator[None]:
    """Inside of the context, the optimizer's learning rate is scaled to the number of ranks."""
    groups = optimizer.param_groups
    rates = [group.get("lr") for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        if rate is not None:
            group["lr"] = rate * ranks
    try:
        yield
    finally:
        for group, rate in zip(groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
