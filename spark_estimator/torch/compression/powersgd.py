"""PowerSGD: sends gradients as products of two narrow matrices, found by one step of a power iteration.

Of a gradient [rows, columns], ``(rows + columns) * rank`` numbers are sent instead of ``rows * columns`` (Vogels,
Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"). On rank r,
with gradient + residue M_r and the factor Q of the step before::

    P = sum of all M_r Q                first request
    B = an orthonormal basis of P
    Q = sum (or average) of all M_r^T B second request, once the first requests of all buckets are in flight
    gradient := B Q^T                   the same on all ranks
    residue  := M_r - B (M_r^T B)^T     what B does not reach of this rank's own

A residue contains only the part outside of B. The paper's residue also contains the difference of the rank's own part
from the average: that adds up to zero over the ranks, but grows if their data differ, and is wrong as soon as other
ranks take part. B and the product are computed from what was received, in ways that round alike on all processors.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from spark_estimator._native import Op
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import Plan
from spark_estimator.collectives.requests import Addresses
from spark_estimator.torch.collectives.memory import element_type
from spark_estimator.torch.compression.compressors import BucketCompression
from spark_estimator.torch.compression.feedback_bucket import FeedbackBucket, Part, Residues, check_whole
from spark_estimator.torch.compression.low_rank import first_factor, orthonormal, product, scaled_columns
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.slot import Slot

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


@dataclass(frozen=True)
class PowerSGD(BucketCompression):
    """Sends matrices as products of two narrow ones, with error feedback. ``hvd.Compression.powersgd`` makes it.

    A parameter of more than two dimensions is a matrix of its first one and all others. Those of one dimension, and
    those that would not become smaller, are sent as they are, in the same request. Bytes: ``(rows + columns) * rank``
    elements of 4 bytes (8 of a float64 parameter) instead of ``rows * columns`` of its own type: of a layer of 1000 by
    1000 in float32, 16 KB instead of 4 MB at rank 2. Memory: a residue as large as the parameter.

    A gradient that is not finite on some rank is NaN on all, so that a ``GradScaler`` skips the step everywhere;
    residue and factor stay what they were. A residue is in the loss scale's units of its time: in the step after a
    change of scale it counts that much more or less. Residues are in no ``state_dict``: after a restart what was owed
    is lost.

    Args:
        rank: columns of the factors, 1 or more. More is closer to the gradient, and larger.
        dense_steps: how many exchanges of each parameter are sent whole before. Gradients turn fastest at the start of
            a
            training: then a low rank leaves out most, and delayed parts are worth least.
        seed: of the first factors.

    Raises:
        ValueError: an argument is out of range.
    """

    rank: int = 2
    dense_steps: int = 100
    seed: int = 0
    memory: Residues = field(default_factory=Residues, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, 1)
        check_whole("dense_steps", self.dense_steps, 0)
        check_whole("seed", self.seed, 0)

    def for_one_optimizer(self) -> Self:
        return dataclasses.replace(self)

    def bucket(self, name: str, slots: list[Slot], options: Options) -> PowerSGDBucket:
        return PowerSGDBucket(name, slots, options, self)


class _Matrix:
    """A part that is sent as two factors, and what is computed for it in the present exchange.

    Attributes:
        part: the parameter, with its residue.
        position: in the bucket.
        left: P: [rows, rank], summed in place.
        basis: B: [rows, rank]; None: nothing to be done, as no rank has a gradient, or as one is not finite.
        finite: whether all gradients are, as far as P shows.
        own: this rank's M^T B, [columns, rank].
        right: Q: where the second request puts the sum of those.
    """

    def __init__(self, part: Part, position: int, settings: PowerSGD) -> None:
        self.part = part
        self.position = position
        self._settings = settings
        self.left = self.local_right = self.right = torch.empty(0)
        self.forget()

    def forget(self) -> None:
        self.basis: torch.Tensor | None = None
        self.finite = True

    def project(self) -> torch.Tensor:
        """P of this rank alone."""
        total, residue = self.part.take(), self.part.residue
        if residue.factor is None:
            residue.factor = self._drawn()
        # The narrow matrix first, as rows: eight times as fast as `total @ factor` in the library.
        self.left = (residue.factor.to(total.device).t().contiguous() @ total.t()).t().to("cpu").contiguous()
        return self.left

    def find_basis(self, has_gradient: bool) -> torch.Tensor:
        """Makes B of the received P; gives Q of this rank alone."""
        part, total = self.part, self.part.total
        assert total is not None
        self.finite = bool(torch.isfinite(self.left).all())
        if has_gradient and self.finite:
            self.basis, self._added = orthonormal(self.left)
            self.local_right = (self.basis.to(total.device).t().contiguous() @ total).t()
        else:
            self.local_right = torch.zeros((part.columns, self._settings.rank), dtype=part.dtype)
        self.right = self.local_right.to("cpu", copy=True).contiguous()  # which the sum of all will replace
        return self.right

    def multiply(self) -> None:
        """Makes the gradient and the residue of B and the received Q."""
        part, residue, total, right = self.part, self.part.residue, self.part.total, self.right
        assert total is not None
        if self.basis is None or not torch.isfinite(right).all():
            total.fill_(torch.nan)
        else:
            basis = self.basis.to(total.device)
            if residue.owed is None:
                residue.owed = torch.empty_like(total)
            torch.addmm(total, basis, self.local_right.t(), alpha=-1, out=residue.owed)
            product(basis, right.to(total.device), out=total)
            residue.factor = self._redrawn(scaled_columns(right))
        part.put_back()

    def _drawn(self) -> torch.Tensor:
        seed = self._settings.seed + 0x9E3779B9 * self.part.residue.draws  # another one each time, alike on all ranks
        return first_factor(self.part.columns, self._settings.rank, seed & (2**63 - 1), self.part.dtype)

    def _redrawn(self, factor: torch.Tensor) -> torch.Tensor:
        """The factor with new columns for those that led to no direction: from zero they would never recover."""
        lost = [column for column, added in enumerate(self._added) if not added or not factor[:, column].any()]
        if lost:
            self.part.residue.draws += 1
            factor[:, lost] = self._drawn()[:, lost]
        return factor


class PowerSGDBucket(FeedbackBucket):
    """Gradients whose factors P are summed by one allreduce, with all that is sent as it is, and Q by a second one.

    Args:
        name, slots, options: as for `Bucket`.
        settings: with the memory.
    """

    def __init__(self, name: str, slots: list[Slot], options: Options, settings: PowerSGD) -> None:
        super().__init__(name, slots, options, settings.memory, settings.dense_steps)
        self._matrices = [
            _Matrix(part, position, settings)
            for position, part in enumerate(self._parts)
            if self._saves(part, settings.rank)
        ]
        factored = {matrix.position for matrix in self._matrices}
        self._plain = [position for position in range(len(slots)) if position not in factored]
        self._plans: dict[str, Plan] = {}
        self._flags = torch.empty(0)
        self._second: Handle | None = None
        self._second_bytes = sum(m.part.columns * settings.rank * m.part.dtype.itemsize for m in self._matrices)

    @staticmethod
    def _saves(part: Part, rank: int) -> bool:
        slot = part.slot
        if slot.param.dim() < 2 or not slot.dtype.is_floating_point:
            return False
        return (part.rows + part.columns) * rank * part.dtype.itemsize < slot.param.numel() * slot.dtype.itemsize

    def _send(self) -> Handle:
        lefts = [matrix.project() for matrix in self._matrices]
        for position in self._plain:
            slot = self.slots[position]
            gradient = slot.take()
            as_it_is = gradient is not None and gradient.is_cpu and slot.fits(gradient)
            slot.wire = gradient if as_it_is else slot.copied("cpu", slot.dtype)
        wires = [wire for position in self._plain if (wire := self.slots[position].wire) is not None]
        # One flag a gradient: 1 where this rank has one. What is 0 for all ranks keeps no gradient anywhere.
        self._flags = torch.tensor([slot.gradient is not None for slot in self.slots]).to(self.slots[0].dtype)
        wires = [*lefts, *wires, self._flags]
        self.bytes_given = sum(wire.nbytes for wire in wires) + self._second_bytes
        return self._summed(self.name, wires)

    @torch.no_grad()
    def _go_on(self) -> None:
        if self._handle is None or not self._matrices:
            return
        self._handle.wait()
        rights = [matrix.find_basis(bool(self._flags[matrix.position])) for matrix in self._matrices]
        self._second = self._summed(f"{self.name}.right", rights)

    @torch.no_grad()
    def _receive(self) -> None:
        assert self._handle is not None
        self._handle.wait()
        if self._second is not None:
            self._second.wait()
        for matrix in self._matrices:
            if self._flags[matrix.position]:
                matrix.multiply()
        for position in self._plain:
            slot = self.slots[position]
            if self._flags[position] and slot.wire is not None:
                slot.put_back(slot.wire)

    def forget(self) -> None:
        super().forget()
        self._second = None
        for matrix in self._matrices:
            matrix.forget()

    def _summed(self, name: str, wires: list[torch.Tensor]) -> Handle:
        """Reduces tensors in place, as the options have it."""
        if name not in self._plans:
            op, prescale, postscale = self._options.scaled_op()
            self._plans[name] = collectives.plan(
                Op.ALLREDUCE,
                name,
                [(element_type(wire.dtype), tuple(wire.shape)) for wire in wires],
                reduce_op=op,
                prescale=prescale,
                postscale=postscale,
                process_set=self._options.process_set,
            )
        addresses: Addresses = [wire.data_ptr() for wire in wires]
        return self._plans[name].submit(addresses, addresses, wires, defer=True)
