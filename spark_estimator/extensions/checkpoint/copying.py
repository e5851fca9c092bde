"""Copies the state into a slot, at once or beside the next forward and backward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

Pair = tuple[torch.Tensor, torch.Tensor]


class Copying:
    """One copy at a time. What is copied later is not changed until `wait` has returned: optimizers wait for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def run(self, now: Sequence[Pair], later: Sequence[Pair], done: Callable[[bool], None]) -> None:
        """Copies pairs of target and source.

        Args:
            now: before this returns.
            later: in a thread.
            done: called at the end, in the thread where there is one; False: a source has changed meanwhile, or a
                copy has failed, so the targets are no whole state.
        """
        self.wait()
        for target, source in now:
            _copy(target, source)
        if not later:
            done(True)
            return
        # In-place changes count up a tensor's version; only those through `.data` do not.
        versions = [source._version for _, source in later]

        def act() -> None:
            whole = False
            try:
                with torch.no_grad():
                    for target, source in later:
                        _copy(target, source)
                whole = versions == [source._version for _, source in later]
            finally:
                done(whole)

        self._thread = threading.Thread(target=act, name="spark_estimator checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Returns when the copy is made."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copies numbers in this thread alone.

    torch's own copy has several threads, which wait for each other: many times as long on a machine full of ranks.
    """
    if source.device.type == "cpu" and source.is_contiguous():
        numpy.copyto(_bytes_of(target), _bytes_of(source))
    else:
        target.copy_(source)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
