"""Gradients as int8 between hosts: the engine rounds them, and adds the rounding error to the next gradient.

Each block of 256 values has a scale (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"). With *error
feedback* nothing is lost, only delayed: over any number of steps, what all ranks have received and what they still owe
add up to all their gradients (Karimireddy et al. 2019, "Error Feedback Fixes SignSGD").
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from spark_estimator.collectives.compression.int8 import LEAST_ELEMENTS, count_wire_bytes
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import Plan
from spark_estimator.torch.collectives.compressors import BucketCompression, FP32Compressor, NoneCompressor
from spark_estimator.torch.collectives.device import find_common_location, warn_about_int8
from spark_estimator.torch.optimizer.bucket import DenseBucket, Options
from spark_estimator.torch.optimizer.slot import Slot

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


class Residues:
    """Keeps the rounding errors of one optimizer by parameter: [elements] float32, in memory order, on the CPU.

    They outlive the optimizer's plans, but not the parameter, and not the job: after another ``init()`` other ranks may
    take part, without these errors, so that all begin with zeros.
    """

    def __init__(self) -> None:
        self._engine: weakref.ref[Engine] | None = None
        self._residues = WeakTensorKeyDictionary()

    def find_residue(self, slot: Slot, engine: Engine) -> torch.Tensor:
        """Return the errors of a slot's parameter; zeros if its type, shape or order have changed."""
        if self._engine is None or self._engine() is not engine:
            self._engine = weakref.ref(engine)
            self._residues = WeakTensorKeyDictionary()
        form = (slot.dtype, slot.param.shape, slot.order)
        entry: tuple[object, torch.Tensor] | None = self._residues.get(slot.param)
        if entry is None or entry[0] != form:
            entry = self._residues[slot.param] = (form, torch.zeros(slot.param.numel(), dtype=torch.float32))
        return entry[1]

    def __reduce__(self) -> tuple[type[Residues], tuple[()]]:
        """Return a form without errors, for a copy, also in another process."""
        return Residues, ()


@dataclass(frozen=True)
class Int8(BucketCompression):
    """Sends gradients as int8 between hosts, with error feedback. ``hvd.Compression.int8`` is one.

    Bytes: an element is sent as 1 byte and a 64th of a float32 scale, 3.94 times fewer than float32. What is summed
    inside a host is float32: ranks of one host exchange gradients as without compression. Results are the same bits on
    all ranks and in every run of the same ranks on the same hosts. Memory: a float32 residue as large as the parameter.
    Gradients of float16, bfloat16 and float64 are converted to float32 and back.

    Parameters of fewer than 1024 elements are sent as float32, as do buckets of at most 16 KiB for each rank. Gradients
    on a GPU are sent as they are, with a warning. A block with a value that is not finite is NaN on all ranks, so that
    a ``GradScaler`` skips the step everywhere. A residue is in the loss scale's units of its time: in the step after a
    change of scale it counts that much more or less. Residues are in no ``state_dict``: after a restart what was owed
    is lost, less than a 254th of the largest element of each block.
    """

    memory: Residues = field(default_factory=Residues, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return "Compression.int8"

    def for_one_optimizer(self) -> Self:
        return dataclasses.replace(self)

    def bucket(self, name: str, slots: list[Slot], options: Options) -> DenseBucket:
        if find_common_location([slot.param for slot in slots], options.process_set).on_gpu:
            warn_about_int8()
            return DenseBucket(name, slots, dataclasses.replace(options, compression=NoneCompressor))
        return Int8Bucket(name, slots, options, self)


class Int8Bucket(DenseBucket):
    """Gradients in host memory that the engine may round when it sends them.

    Args:
        name, slots, options: as for `Bucket`.
        settings: with the residues.
    """

    def __init__(self, name: str, slots: list[Slot], options: Options, settings: Int8) -> None:
        cast = NoneCompressor if slots[0].dtype is torch.float32 else FP32Compressor
        super().__init__(name, slots, dataclasses.replace(options, compression=cast))
        engine = options.engine()
        self._owed = [
            settings.memory.find_residue(slot, engine) if slot.param.numel() >= LEAST_ELEMENTS else None
            for slot in slots
        ]

    def _submit_plan(self, wires: list[torch.Tensor], addresses: list[int], present: torch.Tensor) -> Handle:
        handle = super()._submit_plan(wires, addresses, present)
        self.bytes_given = present.nbytes + sum(
            wire.nbytes if owed is None else count_wire_bytes(wire.numel())
            for wire, owed in zip(wires, self._owed, strict=True)
        )
        return handle

    def _make_plan(self, wires: Sequence[torch.Tensor]) -> Plan:
        # The last wire contains which gradients there are.
        residues = [0 if owed is None else owed.data_ptr() for owed in self._owed] + [0]
        return self._plan_for(wires, residues, keep=self._owed)
