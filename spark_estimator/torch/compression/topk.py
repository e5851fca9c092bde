"""Top-k: sends only the largest elements of each gradient, with their indices, and adds up those with equal indices.

The rest is remembered and added to the next gradient (Stich, Cordonnier, Jaggi 2018, "Sparsified SGD with Memory"; Lin
et al. 2018, "Deep Gradient Compression"). The ranks' elements have different positions, so they are gathered: each rank
receives what all others have sent, and adds it up in the order of ranks, so that the bits are the same everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from spark_estimator._native import Op, ReduceOp
from spark_estimator.collectives import ops as collectives
from spark_estimator.collectives.handle import Handle
from spark_estimator.torch.collectives.device import gathered
from spark_estimator.torch.collectives.memory import described
from spark_estimator.torch.compression.compressors import BucketCompression
from spark_estimator.torch.compression.feedback_bucket import FeedbackBucket, Part, Residues, check_whole
from spark_estimator.torch.optimizer.bucket import Options
from spark_estimator.torch.optimizer.slot import Slot

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on


@dataclass(frozen=True)
class TopK(BucketCompression):
    """Sends the largest elements of each gradient, with error feedback. ``hvd.Compression.topk`` makes it.

    Bytes: an element of a float32 gradient is sent as 8 bytes, its value and its place. A rank gives
    ``8 * ratio * size`` instead of ``4 * size``, and receives that from each other rank: of a layer of 1000 by 1000, 80
    KB instead of 4 MB at the default ratio. What a rank receives grows with the number of ranks, other than in an
    allreduce: beyond ``1 / ratio`` ranks nothing is saved. ``hvd.join()`` does not work with it, as with any allgather.
        Memory: a residue as large as the parameter.

    A gradient that is not finite on some rank is not finite on all, so that a ``GradScaler`` skips the step everywhere;
    the residue stays what it was. A residue is in the loss scale's units of its time: in the step after a change of
    scale it counts that much more or less. Residues are in no ``state_dict``: after a restart what was owed is lost.

    Args:
        ratio: which share of a parameter's elements is sent, more than 0 and less than 1; at least one element.
        dense_steps: how many exchanges of each parameter are sent whole before, as an allreduce. Gradients turn fastest
            at the start of a training: delayed parts are worth least then.
        whole: parameters of fewer elements are sent whole always, without places: biases and norms are worth it.

    Raises:
        ValueError: an argument is out of range.
    """

    ratio: float = 0.01
    dense_steps: int = 100
    whole: int = 1024
    memory: Residues = field(default_factory=Residues, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ratio: object = self.ratio
        if not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
            raise ValueError(f"ratio={self.ratio!r} must be more than 0 and less than 1.")
        check_whole("dense_steps", self.dense_steps, 0)
        check_whole("whole", self.whole, 0)

    def for_one_optimizer(self) -> Self:
        return dataclasses.replace(self)

    def bucket(self, name: str, slots: list[Slot], options: Options) -> TopKBucket:
        return TopKBucket(name, slots, options, self)

    def sent_elements(self, elements: int, itemsize: int) -> int:
        """How many of a parameter's elements are sent; all of them, where indices would cost more than they save."""
        count = max(1, math.ceil(elements * self.ratio))
        index_bytes = index_type(elements).itemsize
        if elements < self.whole or count * (itemsize + index_bytes) >= elements * itemsize:
            return elements
        return count


def index_type(elements: int) -> torch.dtype:
    """The type in which an index into a tensor of this number of elements is sent."""
    return torch.int32 if elements < 1 << 31 else torch.int64


class _Chosen:
    """A part, and what of it is sent in the present exchange.

    Attributes:
        part: the parameter, with its residue.
        count: how many of its elements are sent.
        whole: whether that is all of them.
        indices: of those elements, in memory order; None when all are sent.
        left: what remains at these indices: what rounding to the wire type has taken away.
    """

    def __init__(self, part: Part, settings: TopK) -> None:
        elements = part.slot.param.numel()
        self.part = part
        self.count = settings.sent_elements(elements, part.slot.dtype.itemsize)
        self.whole = self.count == elements
        self.indices: torch.Tensor | None = None
        self.left = torch.empty(0)

    def take(self, prescale: float) -> torch.Tensor:
        """The values that are sent, [count] in the parameter's type, already multiplied by `prescale`."""
        values = total = self.part.take().view(-1)
        if not self.whole:
            # One that is not finite counts as the largest, so that all ranks will know of it.
            self.indices = torch.topk(total.abs(), self.count, sorted=False).indices
            values = total[self.indices]
        sent = (values * prescale).to(self.part.slot.dtype)
        self.left = values - sent.to(self.part.dtype) / prescale
        return sent

    def add_up(self, values: torch.Tensor, indices: torch.Tensor | None) -> None:
        """Makes the sum of all ranks' elements the gradient.

        Args:
            values: [size, count] in the type that is computed in.
            indices: [size, count]; None when all elements are sent.
        """
        assert self.part.total is not None
        residue, total = self.part.residue, self.part.total.view(-1)
        if torch.isfinite(values).all():
            if residue.owed is None:
                residue.owed = torch.empty_like(self.part.total)
            owed = residue.owed.view(-1)
            if self.indices is None:
                owed.copy_(self.left)
            else:
                owed.copy_(total)[self.indices] = self.left
        values = values.to(total.device)
        total.zero_()
        for rank, rank_values in enumerate(values):  # in this order everywhere; a rank's own places are all different
            if indices is None:
                total.add_(rank_values)
            else:
                total.index_add_(0, indices[rank].to(total.device, torch.int64), rank_values)
        self.part.put_back()


class TopKBucket(FeedbackBucket):
    """Gradients whose largest elements are gathered by one request: of values, of places, and of who has a gradient.

    Args:
        name, slots, options: as for `Bucket`.
        settings: with the memory.
    """

    def __init__(self, name: str, slots: list[Slot], options: Options, settings: TopK) -> None:
        super().__init__(name, slots, options, settings.memory, settings.dense_steps)
        self._chosen = [_Chosen(part, settings) for part in self._parts]
        self._index_type = index_type(max(slot.param.numel() for slot in slots))
        self._sent: tuple[torch.Tensor, ...] = ()

    def _send(self) -> Handle:
        prescale = self._options.scaled_op()[1]
        device, index_type = self.location.device, self._index_type
        values = torch.cat([chosen.take(prescale).to(device) for chosen in self._chosen])
        indices = [chosen.indices.to(device, index_type) for chosen in self._chosen if chosen.indices is not None]
        indices = indices or [torch.empty(0, dtype=index_type, device=device)]
        flags = torch.tensor([slot.gradient is not None for slot in self.slots], dtype=torch.uint8, device=device)
        sent = self._sent = (values, torch.cat(indices), flags)
        self.bytes_given = sum(tensor.nbytes for tensor in sent)
        return collectives.submit(
            Op.ALLGATHER,
            self.name,
            [described(tensor)._replace(output=0) for tensor in sent],
            process_set=self._options.process_set,
            keep=sent,
            gpu=self._gpu,
        )

    @torch.no_grad()
    def _receive(self) -> None:
        assert self._handle is not None
        received = gathered(self._handle, self.location, self._gpu, self._sent, "DistributedOptimizer")
        own_values, indices, flags = (joined.view(len(rows), len(joined) // len(rows)) for joined, rows in received)
        op, _, postscale = self._options.scaled_op()
        if op is ReduceOp.AVERAGE:
            postscale /= self._options.engine().size
        values = own_values.to(self._parts[0].dtype)
        if postscale != 1.0:
            values = values * postscale
        any_rank = flags.any(0).tolist()
        value = index = 0
        for chosen, has_gradient in zip(self._chosen, any_rank, strict=True):
            chosen_values = values[:, value : value + chosen.count]
            value += chosen.count
            where = None
            if not chosen.whole:
                where = indices[:, index : index + chosen.count]
                index += chosen.count
            if has_gradient:
                chosen.add_up(chosen_values, where)
