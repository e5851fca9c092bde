"""Collectives that chance chooses, on streams that are late, in orders of each rank's own: the seed repeats a run."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import torch

import spark_estimator.torch as hvd
from tests.gpu.tensors import DTYPES, check_equal, everyone, values_of

_BATCHES = 10
_WORKS = 20
#: Bytes that each number is made of before it is written: NaN, or nonsense.
_POISON = 0xFF


class Work(NamedTuple):
    """A collective.

    Attributes:
        kind: which.
        dtypes: of its tensors: one, and of a group as many as it has.
        shape: of each.
        root: of a broadcast.
        seed: of what the ranks give.
        name: of the request.
    """

    kind: str
    dtypes: tuple[torch.dtype, ...]
    shape: tuple[int, int]
    root: int
    seed: int
    name: str

    def values(self, rank: int) -> list[torch.Tensor]:
        """What a rank gives, in pinned memory."""
        return [
            values_of(self.shape, dtype, rank, self.seed + number).to(dtype).pin_memory()
            for number, dtype in enumerate(self.dtypes)
        ]

    def submit(self, tensors: list[torch.Tensor]) -> int:
        """Gives its handle."""
        [tensor, *_] = tensors
        if self.kind == "group":
            return hvd.grouped_allreduce_async(tensors, name=self.name, op=hvd.Sum)
        if self.kind in ("sum", "max"):
            return hvd.allreduce_async(tensor, name=self.name, op=hvd.Sum if self.kind == "sum" else hvd.Max)
        if self.kind == "gather":
            return hvd.allgather_async(tensor, name=self.name)
        if self.kind == "broadcast":
            return hvd.broadcast_async(tensor, self.root, name=self.name)
        return hvd.reducescatter_async(tensor, name=self.name, op=hvd.Sum)

    def right(self, number: int) -> torch.Tensor:
        """The expected result of its tensor of that number, in float64."""
        every = everyone(self.shape, self.dtypes[number], self.seed + number)
        if self.kind in ("sum", "group"):
            return every.sum(0)
        if self.kind == "max":
            return every.amax(0)
        if self.kind == "gather":
            return every.flatten(0, 1)
        if self.kind == "broadcast":
            return every[self.root]
        rows = self.shape[0] // hvd.size()
        return every.sum(0)[hvd.rank() * rows : (hvd.rank() + 1) * rows]


def any_work(chance: random.Random, number: int) -> Work:
    """The same on all ranks, as their `chance` is."""
    kind = chance.choice(["sum", "max", "gather", "broadcast", "scatter", "group"])
    dtypes = tuple(chance.choice(DTYPES[:-1]) for _ in range(chance.randint(1, 5) if kind == "group" else 1))
    shape = (chance.choice([1, 7, 300, 20_000]) * hvd.size(), chance.choice([1, 3]))
    return Work(kind, dtypes, shape, chance.randrange(hvd.size()), chance.randrange(1 << 40), f"work {number}")


def poison(elements: int) -> None:
    """Leaves nonsense in what PyTorch's allocator gives out next on the current stream."""
    for bytes_ in {max(512, elements * width) for width in (1, 2, 4, 8)}:
        torch.full((bytes_,), _POISON, dtype=torch.uint8, device="cuda")


def two_hundred_ops_on_two_streams(seed: int) -> None:
    """Submitted on streams that are late, in orders of each rank's own; waited for on others."""
    rank = hvd.rank()
    shared_choice, rank_choice = random.Random(seed), random.Random(f"{seed} of rank {rank}")
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for batch in range(_BATCHES):
        works = [any_work(shared_choice, batch * _WORKS + number) for number in range(_WORKS)]
        rank_choice.shuffle(works)
        pending: list[tuple[Work, int, Any]] = []
        for work in works:
            with torch.cuda.stream(rank_choice.choice(streams)):
                poison(work.shape[0] * work.shape[1])
                values = work.values(rank)
                tensors = [torch.empty_like(value, device="cuda") for value in values]
                torch.cuda._sleep(rank_choice.randrange(200_000))
                for tensor, value in zip(tensors, values, strict=True):
                    tensor.copy_(value, non_blocking=True)
                pending.append((work, work.submit(tensors), values))
                del tensor, tensors  # whose memory must not be reused before the GPU has finished
        rank_choice.shuffle(pending)
        for work, handle, _ in pending:
            with torch.cuda.stream(rank_choice.choice(streams)):
                got = hvd.synchronize(handle)
                for number, each in enumerate(got if work.kind == "group" else [got]):
                    check_equal(each, work.right(number), (f"--seed {seed}", work))
