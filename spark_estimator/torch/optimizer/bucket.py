"""A bucket of gradients: takes them from the parameters, submits them by address, and writes the averages back.

`Bucket` is the interface of all kinds of bucket; `DenseBucket` is the usual one. A gradient is not copied where it is
dense in host memory or on the GPU, in the parameter's own type and order: the engine works on the memory that autograd
gave it. In all other cases (another order, a sparse gradient, another device, compression) a copy is sent.

A copy is also sent if the gradient shares its memory, with other gradients or with a tensor that autograd will still
read. Each parameter's average is then put into a new tensor.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

import torch
from torch._compile import _disable_dynamo

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.ops import Gpu, Plan
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.torch.collectives.compressors import BucketCompression, NoneCompressor, wire_dtype
from spark_estimator.torch.collectives.device import await_outputs, find_common_location, raw_stream, wait_for_streams
from spark_estimator.torch.collectives.memory import ALONE, find_element_type, make_wire_tensor, references, storage_of
from spark_estimator.torch.optimizer.slot import GRADIENT, Slot


@dataclass(frozen=True)
class Options:
    """How gradients are exchanged; the same on all ranks.

    Attributes:
        compression: of the gradients that are sent; see ``compression.Compressor``.
        op: Average or Sum.
        predivide: f of ``gradient_predivide_factor``: multiplied by 1/f before the sum and by f/size after it.
        groups: explicit buckets: a number of them, or lists of parameters; None: by size.
        sparse_as_dense: sparse gradients are sent as dense ones and returned as sparse ones.
        process_set: over whose ranks; None: all.
    """

    compression: Any
    op: ReduceOp
    predivide: float
    groups: int | Sequence[Sequence[torch.Tensor]] | None
    sparse_as_dense: bool
    process_set: ProcessSet | None = None

    def engine(self) -> Engine:
        """Return the engine of the ranks which exchange. Raises as ``context.engine`` does."""
        return context.engine(self.process_set)

    def bucket(self, name: str, slots: list[Slot]) -> Bucket:
        """Make a bucket for dense gradients, of the compression's own class if it has one."""
        if isinstance(self.compression, BucketCompression):
            bucket: Bucket = self.compression.bucket(name, slots, self)
            return bucket
        return DenseBucket(name, slots, self)

    def make_name(self) -> str:
        """Return a name for one more optimizer, that all ranks of the set make alike if they make it in the same order.

        Each set counts separately: a rank that is in one of them more has made more optimizers than others.
        """
        number = context.take_number(f"DistributedOptimizer {self.engine().process_set}")
        return f"DistributedOptimizer.{number}"

    def scale_op(self) -> tuple[ReduceOp, float, float]:
        """Return the reduction, with the factors before and after it."""
        if self.predivide == 1.0:
            return self.op, 1.0, 1.0
        return ReduceOp.SUM, 1.0 / self.predivide, self.predivide / self.engine().size


class Bucket(ABC):
    """Gradients that are exchanged together: ``submit``, ``finish`` and ``forget``, once in an exchange.

    Args:
        name: of the request; the same on all ranks.
        slots: whose gradients.
        options: how they are exchanged.

    Attributes:
        location: where the gradients are worked on.
        missing: ids of the parameters whose gradients are not complete yet. Autograd's threads take theirs out.
        torn: it is unknown whether the engine has it: the name of the exception, such as KeyboardInterrupt, raised
            during the submission; "" when nothing did.
        bytes_given: that this rank handed to the engine in the last exchange.
    """

    bytes_given = 0

    def __init__(self, name: str, slots: list[Slot], options: Options) -> None:
        self.name = name
        self.slots = slots
        self._options = options
        self._keys = [id(slot.param) for slot in slots]
        self.missing = set(self._keys)
        self.torn = ""
        self.location = find_common_location([slot.param for slot in slots], options.process_set)
        self._gpu: Gpu | None = None  # with the stream on which it was submitted
        # Of the GPU, on which this exchange's gradients were computed. What is made here is used in it, too.
        self._streams: set[int] = set()
        self._handle: Handle | None = None
        self._lock = threading.Lock()
        self.note_stream()

    @property
    def submitted(self) -> bool:
        """Return whether the engine has it, or has had it, in the present exchange."""
        return self._handle is not None or self.torn != ""

    def submit(self) -> None:
        """Hand the bucket to the engine, with zeros for missing gradients, and do not wait; once an exchange."""
        with self._lock:  # two of autograd's threads may each have brought the last gradient
            if self._handle is None:
                try:
                    self._gather_streams()
                    self._handle = self._submit()
                except Exception:
                    raise
                except BaseException as error:
                    self.torn = type(error).__name__
                    raise

    def note_stream(self) -> None:
        """Have later work of a GPU's current stream wait for the submitted requests."""
        if self.location.on_gpu:
            self._streams.add(raw_stream(self.location.number))

    def _gather_streams(self) -> None:
        """Has the current stream wait for those on which autograd has computed: a branch's backward is on its own."""
        self._gpu = self.location.make_gpu("DistributedOptimizer")
        if self._gpu is not None:
            others = self._streams - {self._gpu.stream}
            if others:
                wait_for_streams(self._gpu.device, others)

    @abstractmethod
    def _submit(self) -> Handle:
        """Hands the gradients that there are to the engine. Does not block."""

    @abstractmethod
    def finish(self) -> list[Slot]:
        """Wait for the reduction, and make its results the parameters' gradients. Raise as ``Handle.wait``.

        Return the slots for which no rank had a gradient, so that none has one now: the same on all ranks.
        """

    def forget(self) -> None:
        """Make ready for the next exchange. What is still in flight keeps its memory to itself."""
        self._handle = None
        self.torn = ""
        self._streams.clear()
        self.missing.update(self._keys)
        for slot in self.slots:
            slot.forget()

    def detach_gradients(self) -> None:
        """Detaches the parameters from memory that the engine may be writing; `finish` attaches them again."""
        for slot in self.slots:
            slot.param.grad = None


_OVERLAPPED = attrgetter("overlapped")


class DenseBucket(Bucket):
    """Gradients of one wire type that are reduced by one allreduce."""

    def __init__(self, name: str, slots: list[Slot], options: Options) -> None:
        super().__init__(name, slots, options)
        wire_type = wire_dtype(options.compression, slots[0].dtype)
        self._plan: Plan | None = None
        # One flag a gradient is sent along: 1 where this rank has one. What is 0 for all ranks keeps no gradient
        # anywhere, as in a single process, so that weight decay or momentum do not move a parameter that no rank used.
        # None: a custom compressor, whose wire type, order and size are known when it has compressed.
        self._ones = None if wire_type is None else torch.ones(len(slots), dtype=wire_type, device=self.location.device)
        self._flags: torch.Tensor | None = None
        self._sent: list[torch.Tensor] = []  # all that the engine reads and writes
        self._held: list[torch.Tensor] | None = None  # all gradients, when all are sent in their own memory
        # The strides of those that are not contiguous only: to ask them of each gradient would cost most.
        self._params = [slot.param for slot in slots]
        self._strides = [
            None if torch.empty(slot.param.shape, device="meta").stride() == slot.strides else slot.strides
            for slot in slots
        ]

    def _submit(self) -> Handle:
        direct = self._find_direct_gradients() if self._options.compression is NoneCompressor else None
        if direct is not None and self._ones is not None:
            self._held, addresses = direct
            return self._submit_plan(self._held, addresses, self._ones)
        for slot in self.slots:
            self._take(slot)
        wires = [_require(slot.wire) for slot in self.slots]
        if self._ones is None:
            op, prescale, postscale = self._options.scale_op()
            self.bytes_given = sum(wire.nbytes for wire in wires)
            self._sent = wires
            return collectives.submit(
                Op.ALLREDUCE,
                self.name,
                [make_wire_tensor(wire) for wire in wires],
                reduce_op=op,
                prescale=prescale,
                postscale=postscale,
                process_set=self._options.process_set,
                keep=wires,
                gpu=self._gpu,
            )
        present = torch.tensor([slot.gradient is not None for slot in self.slots])
        addresses = [wire.data_ptr() for wire in wires]
        return self._submit_plan(wires, addresses, present.to(self.location.device, self._ones.dtype))

    @_disable_dynamo  # which follows a compiled step into what runs at its graph's breaks
    def _find_direct_gradients(self) -> tuple[list[torch.Tensor], list[int]] | None:
        """Return all gradients and their addresses, if each can be sent unchanged; else None.

        The usual case, on the path of every step: keep it short. The first look at a gradient costs most of the time,
        as none is in a cache if there are many, so that there is one loop over them.
        """
        if any(map(_OVERLAPPED, self.slots)):
            return None
        dtype, strided, storage, count, alone = self.slots[0].dtype, torch.strided, storage_of, references, ALONE
        device = self.location.torch_number
        gradients, addresses = [], []
        for position, (gradient, strides) in enumerate(zip(map(GRADIENT, self._params), self._strides, strict=True)):
            if (
                gradient is None
                or gradient.dtype is not dtype
                or gradient.layout is not strided
                or gradient.get_device() != device
                or not (gradient.is_contiguous() if strides is None else gradient.stride() == strides)
                or gradient.is_neg()
                or (count(storage(gradient)) > alone and gradient is not self.slots[position].before)
            ):
                return None
            gradients.append(gradient)
            addresses.append(gradient.data_ptr())
        return gradients, addresses

    def _submit_plan(self, wires: list[torch.Tensor], addresses: list[int], present: torch.Tensor) -> Handle:
        """Hands over wire forms at these addresses, and for each whether there is a gradient."""
        flags = self._flags = torch.empty_like(present)
        if self._plan is None:
            self._plan = self._make_plan([*wires, present])
            self.bytes_given = sum(wire.nbytes for wire in (*wires, present))
        self._sent = [*wires, present, flags]
        stream = 0 if self._gpu is None else self._gpu.stream
        # Gradients are not read before the end of backward, which waits.
        return self._plan.submit(
            [*addresses, present.data_ptr()], [*addresses, flags.data_ptr()], self._sent, defer=True, stream=stream
        )

    def _make_plan(self, wires: Sequence[torch.Tensor]) -> Plan:
        """Make the request for wire forms such as these, whose types and shapes are the same in every step."""
        return self._plan_for(wires)

    def _plan_for(self, wires: Sequence[torch.Tensor], residues: Sequence[int] = (), keep: object = None) -> Plan:
        op, prescale, postscale = self._options.scale_op()
        forms = [(find_element_type(wire.dtype), tuple(wire.shape)) for wire in wires]
        return collectives.plan(
            Op.ALLREDUCE,
            self.name,
            forms,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            process_set=self._options.process_set,
            device=self.location.engines_device,
            residues=residues,
            keep=keep,
        )

    def finish(self) -> list[Slot]:
        assert self._handle is not None
        await_outputs(self._handle, self._gpu, self._sent, "DistributedOptimizer")
        if self._held is not None:
            if not all(map(is_, map(GRADIENT, self._params), self._held)):
                for param, gradient in zip(self._params, self._held, strict=True):
                    if param.grad is not gradient:
                        param.grad = gradient
            return []
        # Only where this rank misses a gradient: to read them makes the CPU wait for the GPU.
        misses = self._flags is not None and any(slot.gradient is None for slot in self.slots)
        flags = self._flags.tolist() if self._flags is not None and misses else None
        unused = []
        for position, slot in enumerate(self.slots):
            if slot.gradient is None:
                if flags is None or flags[position]:
                    self._give_back(slot)
                else:
                    unused.append(slot)
            elif slot.wire is not slot.gradient or slot.param.grad is not slot.gradient:
                self._give_back(slot)
        return unused

    def forget(self) -> None:
        super().forget()
        self._flags = self._held = None
        self._sent = []

    def _take(self, slot: Slot) -> None:
        gradient = slot.take()
        compression = self._options.compression
        if gradient is not None and gradient.get_device() == self.location.torch_number and slot.fits(gradient):
            wire = gradient
        else:
            wire = slot.copy_gradient(self.location.device, slot.dtype)
        if compression is not NoneCompressor:
            wire, slot.context = compression.compress(wire.detach())
            if self._ones is None:
                wire = wire.detach().to(self.location.device).contiguous()
        slot.wire = wire

    def _give_back(self, slot: Slot) -> None:
        wire = slot.wire
        if self._options.compression is not NoneCompressor:
            wire = self._options.compression.decompress(wire, slot.context)
        slot.put_back(_require(wire))


def _require(wire: torch.Tensor | None) -> torch.Tensor:
    assert wire is not None
    return wire
