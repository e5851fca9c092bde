"""Copies the state of objects into a slot, at once or beside the next forward and backward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from spark_estimator.checkpoint.random_state import get_random_state
from spark_estimator.checkpoint.writer_link import WriterLink
from spark_estimator.extensions.checkpoint.job import Objects, Packed
from spark_estimator.extensions.checkpoint.layout import Layout, Staging, collect_structure, make_layout, select_rows
from spark_estimator.extensions.checkpoint.state import StateEntry, collect_addresses, collect_entries, find_own_buffers

Pair = tuple[torch.Tensor, torch.Tensor]


class Copying:
    """One copy at a time. What is copied later is not changed until `wait` has returned: optimizers wait for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def run(self, now: Sequence[Pair], later: Sequence[Pair], done: Callable[[bool], None]) -> None:
        """Copy pairs of target and source.

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
        """Wait until the copy is made."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class StateCopier:
    """Copies the objects of a `Checkpointer`, which has these arguments.

    Args:
        optimizers: whose parameters and states are copied later, until `wait` returns.

    Attributes:
        staging: the room in the slots, for the present structure of the state; None: not made yet.
    """

    def __init__(
        self, state: Mapping[str, Any], local: Mapping[str, Any], rank: int, ranks: int, optimizers: Sequence[Any]
    ) -> None:
        self.staging: Staging | None = None
        self._state = state
        self._local = local
        self._rank = rank
        self._ranks = ranks
        self._optimizers = optimizers
        self._objects = Objects()
        self._copying = Copying()

    def wait(self) -> None:
        """Return when the last copy is made."""
        self._copying.wait()

    @property
    def layout(self) -> Layout | None:
        """Return the layout of this rank's part; None: it is not known yet."""
        return None if self.staging is None else self.staging.layout

    def make_room(self, step: int, link: WriterLink) -> list[StateEntry]:
        """Return the state; make new room where its structure is another than last time.

        Raises:
            DataError: it cannot be in a checkpoint.
        """
        entries = [*collect_entries(self._state), StateEntry("step", ("step",), step)]
        structure = collect_structure(entries)
        if self.layout is None or self.layout.structure != structure:
            layout = make_layout(entries, structure, self._rank, self._ranks)
            self.staging = Staging(layout, [entry.value for entry in entries], link)
        return entries

    def prepare(self, step: int, link: WriterLink) -> tuple[list[StateEntry], list[Packed]]:
        """Return the state and its values that are no tensors, with room for it.

        Raises:
            DataError: it cannot be in a checkpoint, or could not be read back without running code.
        """
        entries = self.make_room(step, link)
        buffers = {}
        for name, value in self._state.items():
            for key, buffer in find_own_buffers(value).items() if self._rank else ():
                buffers[f"{name}.{key}"] = buffer.detach().cpu()
        local = {name: value.state_dict() for name, value in self._local.items()}
        rank_state = {"random": get_random_state(), "buffers": buffers, "local": local}
        return entries, self._objects.pack(entries, rank_state, self._rank)

    def copy(
        self, entries: Sequence[StateEntry], targets: Sequence[torch.Tensor], done: Callable[[bool], None]
    ) -> None:
        """Copy tensors to the targets that `staging` has for a slot; `done` as of `Copying.run`."""
        assert self.layout is not None
        later = collect_addresses(self._optimizers)
        pairs: tuple[list[Pair], list[Pair]] = [], []
        for target, placed in zip(targets, self.layout.pieces, strict=True):
            source = select_rows(entries[placed.entry].value.detach(), placed)
            pairs[source.untyped_storage().data_ptr() in later].append((target, source))
        self._copying.run(*pairs, done)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy numbers in this thread alone.

    torch's own copy has several threads, which wait for each other: many times as long on a machine full of
    ranks.
    """
    if source.device.type == "cpu" and source.is_contiguous():
        numpy.copyto(_view_bytes(target), _view_bytes(source))
    else:
        target.copy_(source)


def _view_bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
