"""Some parameters that are exchanged together: their last common values, and the outer step from those.

States: AT_REST -> IN_FLIGHT by `send`; IN_FLIGHT -> AT_REST by `take`, and by `drop`, after which the next `send` has
everything that this one would have brought: a fragment's anchors change by `take` alone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.compression import int8
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch import ProcessSet
from spark_estimator.torch.collectives.memory import make_wire_tensor


class FragmentState(enum.Enum):
    """Whether a fragment's outer gradient is in flight."""

    AT_REST = "each rank steps alone"
    IN_FLIGHT = "the engine has the outer gradient"


@dataclass(frozen=True)
class OuterStep:
    """How an average of outer gradients becomes a step of the anchors: SGD with Nesterov momentum.

    Attributes:
        learning_rate, momentum: of it.
        mixing: the share of the rank's own parameters if a result arrives late; the rest is the anchor's.
        as_int8: whether outer gradients are sent as int8 between hosts.
        process_set: over whose ranks; None: all.
    """

    learning_rate: float
    momentum: float
    mixing: float
    as_int8: bool
    process_set: ProcessSet | None


class Fragment:
    """Parameters, and for each what all ranks have alike.

    Args:
        name: of its requests; the same on all ranks. It may be changed at rest.
        params: of the optimizer, on any device.
        step: how it is made.

    Attributes:
        state: see the module.
        version: outer steps that it has made; the same on all ranks.
        anchors: [params] where all ranks were after the last outer step; in float32 for types of 16 bits.
        momenta: [params] of the outer step; empty where it has none.
        bytes_given: in the last exchange, in the form in which it is sent between hosts.
    """

    def __init__(self, name: str, params: Sequence[torch.Tensor], step: OuterStep) -> None:
        self.state = FragmentState.AT_REST
        self.version = 0
        self.bytes_given = 0
        self.params = list(params)
        self.name = name
        self._step = step
        self.anchors = [_copy_widened(param) for param in self.params]
        self.momenta = [torch.zeros_like(anchor) for anchor in self.anchors] if step.momentum else []
        self._wires: list[torch.Tensor] = []
        self._handle: Handle | None = None

    @torch.no_grad()
    def send(self) -> None:
        """Submit the outer gradient: the difference of this rank's parameters from the anchors. Does not block.

        Raises:
            HorovodInternalError: the job has failed.
        """
        if not self._wires:
            self._wires = [torch.empty(anchor.shape, dtype=anchor.dtype) for anchor in self.anchors]
        for wire, anchor, param in zip(self._wires, self.anchors, self.params, strict=True):
            wire.copy_(anchor - param)
        # A rank that has joined contributes zeros, also here.
        wires = [*self._wires, torch.ones(1)]
        tensors = [make_wire_tensor(wire) for wire in wires]
        residues = self._get_residues([tensor[2:] for tensor in tensors])
        self.bytes_given = sum(
            int8.count_wire_bytes(wire.numel()) if residue else wire.nbytes
            for wire, residue in zip(wires, residues or [0] * len(wires), strict=True)
        )
        self._handle = collectives.submit(
            Op.ALLREDUCE,
            self.name,
            tensors,
            reduce_op=ReduceOp.SUM,
            process_set=self._step.process_set,
            keep=wires,
            residues=residues,
        )
        self._ranks = wires[-1]
        self.state = FragmentState.IN_FLIGHT

    def _get_residues(self, forms: Sequence[Any]) -> tuple[int, ...]:
        if not self._step.as_int8:
            return ()
        keys = [int8.make_key(param) for param in self.params]
        return (*int8.find_residues(self._step.process_set, keys, forms[:-1]), 0)

    @torch.no_grad()
    def take(self, *, late: bool) -> None:
        """Wait for the average, make the outer step, and update this rank's parameters. A collective.

        Args:
            late: steps were made since `send`: the rank's own parameters keep their share.

        Raises:
            HorovodInternalError: a rank is lost; nothing has changed.
        """
        assert self._handle is not None
        try:
            self._handle.wait()
        finally:
            self.drop()
        ranks = self._ranks.item()
        for position, anchor in enumerate(self.anchors):
            gradient = (self._wires[position] / ranks).to(anchor.device)
            if self.momenta:
                momentum = self.momenta[position].mul_(self._step.momentum).add_(gradient)
                gradient = gradient.add_(momentum, alpha=self._step.momentum)
            anchor.sub_(gradient, alpha=self._step.learning_rate)
        self.version += 1
        for param, anchor in zip(self.params, self.anchors, strict=True):
            if late:
                param.lerp_(anchor.to(param.dtype), 1 - self._step.mixing)
            else:
                param.copy_(anchor)

    def drop(self) -> None:
        """Discard the request in flight. The engine uses the memory until the request has ended."""
        if self._handle is not None and not self._handle.done():
            self._wires = []
        self._handle = None
        self.state = FragmentState.AT_REST


def _copy_widened(param: torch.Tensor) -> torch.Tensor:
    """Return a copy of a parameter in which small steps can be added up."""
    dtype = torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype
    return param.detach().to(dtype=dtype, copy=True, memory_format=torch.contiguous_format)
