"""A bucket of gradients on its way: taken from the parameters, handed to the engine by address, put back as averages.

A gradient is not copied where it lies densely in host memory, in the parameter's own type and order: the engine works
on the memory that autograd gave it. In all other cases (another order, a sparse gradient, another device, compression)
a copy travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch.compression import NoneCompressor, wire_dtype
from spark_estimator.torch.memory import described, element_type, overlaps_itself


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged; the same on all ranks.

    Attributes:
        compression: what is sent in place of a gradient; see ``compression.Compressor``.
        op: Average or Sum.
        predivide: f of ``gradient_predivide_factor``: multiplied by 1/f before the sum and by f/size after it.
        groups: explicit buckets: a number of them, or lists of parameters; None: by size.
        sparse_as_dense: sparse gradients travel as dense ones and come back sparse.
    """

    compression: Any
    op: ReduceOp
    predivide: float
    groups: int | Sequence[Sequence[torch.Tensor]] | None
    sparse_as_dense: bool

    def scaled_op(self) -> tuple[ReduceOp, float, float]:
        """The reduction, with the factors before and after it."""
        if self.predivide == 1.0:
            return self.op, 1.0, 1.0
        return ReduceOp.SUM, 1.0 / self.predivide, self.predivide / context.size()


class Slot:
    """A parameter's place in the plan, and what travels for it in the present exchange.

    Attributes:
        param: the parameter.
        name: for messages.
        dtype, order: in which its gradient is expected; see `memory_order`.
        noted: its gradient has been taken in this exchange.
        gradient: as autograd left it; None when there is none.
        wire: what the engine works on: the gradient itself, or a copy.
    """

    __slots__ = ("context", "dtype", "gradient", "name", "noted", "order", "param", "sparse_dims", "wire")

    def __init__(self, param: torch.Tensor, name: str) -> None:
        self.param = param
        self.name = name
        self.dtype = param.dtype
        # Dense also where the parameter itself is not, as a slice of another tensor is.
        self.order = memory_order(torch.empty_like(param, device="meta"))
        # Of the last sparse gradient seen: the form in which an average is given back where there was no gradient.
        self.sparse_dims: int | None = None
        self.forget()

    def forget(self) -> None:
        """Lets go of what travelled."""
        self.noted = False
        self.gradient: torch.Tensor | None = None
        self.wire: torch.Tensor | None = None
        self.context: Any = None  # what decompress wants


class Bucket:
    """Gradients of one wire type that are reduced by one request.

    Args:
        name: of the request; the same on all ranks.
        slots: whose gradients.
        options: how they are exchanged.

    Attributes:
        left: how many gradients are still to be noted before the bucket is complete.
    """

    def __init__(self, name: str, slots: list[Slot], options: Options) -> None:
        self.name = name
        self.slots = slots
        self.left = len(slots)
        self._options = options
        self._handle: Handle | None = None
        wire_type = wire_dtype(options.compression, slots[0].dtype)
        # None: a custom compressor, whose wire type, order and size are known when it has compressed.
        self._code: DType | None = None if wire_type is None else element_type(wire_type)
        # One flag a gradient travels along: 1 where this rank has one. What is 0 for all ranks keeps no gradient
        # anywhere, as in a single process, so that weight decay or momentum do not move a parameter that nobody used.
        self._ones = None if wire_type is None else torch.ones(len(slots), dtype=wire_type)
        self._flags: torch.Tensor | None = None

    @property
    def submitted(self) -> bool:
        """Whether the engine has it, or has had it, in the present exchange."""
        return self._handle is not None

    def note(self, slot: Slot) -> bool:
        """Takes a gradient that autograd has finished; True when it was the last one that was missing."""
        if not slot.noted:
            slot.noted = True
            self.left -= 1
        self._take(slot)
        return self.left == 0

    def submit(self) -> None:
        """Hands the bucket to the engine, with zeros for parameters that have no gradient. Does not block."""
        missing = False
        for slot in self.slots:
            if not slot.noted:
                self._take(slot)
                missing = missing or slot.gradient is None
        wires = [slot.wire for slot in self.slots if slot.wire is not None]
        code = element_type(wires[0].dtype) if self._code is None else self._code
        tensors = [described(wire) for wire in wires]
        if self._ones is not None:
            own, self._flags = self._ones, torch.empty_like(self._ones)
            if missing:
                own = torch.tensor([slot.gradient is not None for slot in self.slots]).to(own.dtype)
            tensors.append(described(own, self._flags))
            wires += [own, self._flags]
        op, prescale, postscale = self._options.scaled_op()
        self._handle = collectives.submit(
            Op.ALLREDUCE,
            self.name,
            tensors,
            code,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            keep=wires,
        )

    def finish(self) -> None:
        """Waits for the reduction, then makes its results the parameters' gradients. Raises as ``Handle.wait`` does."""
        assert self._handle is not None
        self._handle.wait()
        for position, slot in enumerate(self.slots):
            used = slot.gradient is not None or self._flags is None or bool(self._flags[position])
            if used:
                self._give_back(slot)

    def forget(self) -> None:
        """Makes ready for the next exchange. What is still in flight keeps its memory to itself."""
        self._handle = self._flags = None
        self.left = len(self.slots)
        for slot in self.slots:
            slot.forget()

    def let_go_of_memory(self) -> None:
        """Parts the parameters from memory that the engine may be writing; `finish` brings them together again."""
        for slot in self.slots:
            slot.param.grad = None

    def _take(self, slot: Slot) -> None:
        gradient = slot.gradient = slot.param.grad
        if gradient is None:
            wire = torch.zeros_like(slot.param, device="cpu", requires_grad=False)
        else:
            wire = gradient if gradient.layout is torch.strided else self._densified(slot, gradient)
        if wire.dtype is not slot.dtype or wire.device.type != "cpu" or memory_order(wire) != slot.order:
            wire = torch.empty_like(slot.param, device="cpu", requires_grad=False).copy_(wire.detach())
        compression = self._options.compression
        if compression is not NoneCompressor:
            wire, slot.context = compression.compress(wire.detach())
            if self._code is None:
                wire = wire.detach().to("cpu").contiguous()
        slot.wire = wire

    def _densified(self, slot: Slot, gradient: torch.Tensor) -> torch.Tensor:
        if not self._options.sparse_as_dense:
            raise NotImplementedError(
                f"Parameter {slot.name!r} has a sparse gradient ({gradient.layout}). Pass sparse_as_dense=True to "
                "DistributedOptimizer, or make the embedding with sparse=False."
            )
        slot.sparse_dims = gradient.sparse_dim()
        return gradient.to_dense()

    def _give_back(self, slot: Slot) -> None:
        param, gradient, wire = slot.param, slot.gradient, slot.wire
        assert wire is not None
        if self._options.compression is not NoneCompressor:
            wire = self._options.compression.decompress(wire, slot.context)
            assert wire is not None
        if gradient is None or gradient.layout is not torch.strided:
            gradient = wire.to(device=param.device, dtype=param.dtype)
            if slot.sparse_dims is not None:
                gradient = gradient.to_sparse(slot.sparse_dims)
        elif wire is not gradient:
            if overlaps_itself(gradient):
                gradient = wire.to(device=gradient.device, dtype=gradient.dtype)
            else:
                gradient.detach().copy_(wire)
        if param.grad is not gradient:
            param.grad = gradient


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of the dimensions that are longer than 1: equal for tensors whose elements lie in the same order."""
    return tuple(stride for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)
