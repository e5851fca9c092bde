"""Buckets of gradients that are sent in part: the error is stored, and added to the next gradient.

With this *error feedback* nothing is lost, only delayed: over any number of steps, what all ranks have received and
what they still owe add up to all their gradients (Seide et al. 2014, "1-Bit Stochastic Gradient Descent"; Karimireddy
et al. 2019, "Error Feedback Fixes SignSGD"). What a step owes is changed when its exchange has succeeded, and then only
for gradients that are finite on all ranks: the loss scale's search does not spoil it.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import abstractmethod

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch.compression.compressors import NoneCompressor
from spark_estimator.torch.optimizer.bucket import Bucket, DenseBucket, Options
from spark_estimator.torch.optimizer.slot import Slot


class Residue:
    """The stored state of one parameter between exchanges.

    Attributes:
        steps: exchanges that it has taken part in; the same on all ranks.
        owed: what has been left out so far, in memory order and in the type that is computed in; None: nothing.
        factor: PowerSGD's right factor; the same on all ranks.
        draws: how often columns of the factor were drawn by lot; the same on all ranks.
    """

    __slots__ = ("draws", "factor", "form", "owed", "steps")

    def __init__(self, form: object) -> None:
        self.form = form
        self.steps = 0
        self.owed: torch.Tensor | None = None
        self.factor: torch.Tensor | None = None
        self.draws = 0


class Residues:
    """One optimizer's residues, by parameter: they outlive its plans, but not the parameter, and not the job.

    After another ``init()`` other ranks may take part, without these residues: all begin with none.
    """

    def __init__(self) -> None:
        self._engine: weakref.ref[Engine] | None = None
        self._residues = WeakTensorKeyDictionary()

    def residue(self, slot: Slot, engine: Engine) -> Residue:
        """The stored state of a slot's parameter; empty if its type, shape or order have changed."""
        if self._engine is None or self._engine() is not engine:
            self._engine = weakref.ref(engine)
            self._residues = WeakTensorKeyDictionary()
        form = (slot.dtype, slot.param.shape, slot.order)
        residue: Residue | None = self._residues.get(slot.param)
        if residue is None or residue.form != form:
            residue = self._residues[slot.param] = Residue(form)
        return residue

    def __reduce__(self) -> tuple[type[Residues], tuple[()]]:
        """A copy, also in another process, remembers nothing."""
        return Residues, ()


class Part:
    """One parameter of a bucket, and what is computed for it in the present exchange.

    Attributes:
        slot: the parameter's place in the plan.
        residue: what is remembered of it.
        dtype: in which is computed: float32 for half-precision parameters, too.
        rows, columns: of the parameter as a matrix: its outermost dimension in memory (the first one, but for
            transposed parameters), and the others as one.
        total: gradient and residue, in the order of memory; on the parameter's device.
    """

    __slots__ = ("_axes", "_whole", "columns", "dtype", "residue", "rows", "slot", "total")

    def __init__(self, slot: Slot, residue: Residue) -> None:
        self.slot = slot
        self.residue = residue
        self.dtype = torch.float64 if slot.dtype is torch.float64 else torch.float32
        self._axes = sorted(range(slot.param.dim()), key=lambda axis: -slot.strides[axis])
        self.rows = slot.param.shape[self._axes[0]] if self._axes else 1
        self.columns = slot.param.numel() // max(1, self.rows)
        self._whole: torch.Tensor | None = None
        self.total: torch.Tensor | None = None

    def take(self) -> torch.Tensor:
        """Notes the gradient; returns gradient + residue, [rows, columns], in the gradient's own memory if it fits."""
        slot = self.slot
        gradient = slot.take()
        device = slot.param.device
        if gradient is not None and gradient.dtype is self.dtype and gradient.device == device and slot.fits(gradient):
            self._whole = gradient
        else:
            self._whole = slot.copied(device, self.dtype)
        self.total = self._whole.detach().permute(self._axes).view(self.rows, self.columns)
        if self.residue.owed is not None:
            self.residue.owed = self.residue.owed.to(device)
            self.total.add_(self.residue.owed.view_as(self.total))
        return self.total

    def put_back(self) -> None:
        """Makes what `total` holds by now the parameter's gradient."""
        assert self._whole is not None
        self.slot.put_back(self._whole)

    def forget(self) -> None:
        """Makes ready for the next exchange."""
        self._whole = self.total = None


class FeedbackBucket(Bucket):
    """A bucket with error feedback, which is sent whole as long as a parameter of it has not had its dense steps.

    Args:
        name, slots, options: as for `Bucket`.
        memory: where residues are kept.
        dense_steps: how many exchanges of a parameter are whole at first.
    """

    def __init__(self, name: str, slots: list[Slot], options: Options, memory: Residues, dense_steps: int) -> None:
        super().__init__(name, slots, options)
        engine = options.engine()
        self._parts = [Part(slot, memory.residue(slot, engine)) for slot in slots]
        self._dense_steps = dense_steps
        self._dense: DenseBucket | None = None
        if self._whole_yet():
            self._dense = DenseBucket(name, slots, dataclasses.replace(options, compression=NoneCompressor))

    def _whole_yet(self) -> bool:
        return any(part.residue.steps < self._dense_steps for part in self._parts)

    @torch.no_grad()
    def _submit(self) -> Handle:
        if self._dense is None:
            return self._send()
        self._dense.submit()
        self.bytes_given = self._dense.bytes_given
        assert self._dense._handle is not None
        return self._dense._handle

    def proceed(self) -> None:
        if self._dense is None:
            self._go_on()

    def finish(self) -> list[Slot]:
        if self._dense is None:
            self._receive()
        else:
            self._dense.finish()
        for part in self._parts:
            part.residue.steps += 1
        if self._dense is not None and not self._whole_yet():
            self._dense.forget()
            self._dense = None
        return []  # what is owed may be sent for a parameter without a gradient: the step has no further exchange

    def forget(self) -> None:
        super().forget()
        if self._dense is not None:
            self._dense.forget()
        for part in self._parts:
            part.forget()

    @abstractmethod
    def _send(self) -> Handle:
        """As `Bucket._submit`, when not all of the gradients is sent."""

    def _go_on(self) -> None:
        """As `Bucket.proceed`."""

    @abstractmethod
    def _receive(self) -> None:
        """As `Bucket.finish`."""


def check_whole(name: str, value: object, least: int) -> None:
    """Raises ValueError for a setting that is no whole number, or too small."""
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number, {least} or more.")
