"""Recovery within a step: after the loss of a rank, the others continue where the last finished step ended.

Promises of ``hvd.elastic.run(mode="step")``
--------------------------------------------
- At most the step in progress is repeated. Parameters and optimizer state are not copied to make that so: they stay as
  the last step has left them, and a rank that lacks a step takes them from one that has it.
- With as many ranks as before, the numbers are those of an undisturbed run, bit for bit: a new process takes the rank
  of the lost one, its random number generators and its buffers (such as those of batch normalization).
- With fewer ranks the job continues, and grows again when a process joins; both happen at a commit.

Order of events in a step
-------------------------
1. Forward and backward, at whose end the gradients are averaged.
2. ``optimizer.step()`` begins with the *agreement*: each rank sends what it alone has, generators and buffers, to the
   next host's rank (ring order), and then all exchange one number. A rank that has passed the agreement knows that all
   have what the step needs, and that what each rank alone has is in another one's memory, too.
3. The optimizer changes the parameters, without a collective.
4. ``state.commit()``: the step has ended here. It notes the other attributes of the state.

What fails how
--------------
- A rank is lost before any other has passed the agreement: all discard the step, and repeat it.
- Some have passed the agreement: these finish the step; the others take parameters, optimizer state and attributes from
  one of these, and what they alone have from their own interrupted step.
- A failure between ``optimizer.step()`` and ``commit()``, where there should be no collective, on all ranks: the
  attributes do not belong to the parameters on any rank. Then all go back to the last full copy, which is made when a
  round begins and at each hundredth commit.
- The rank with the copy of a lost one is lost with it: the new process has newly seeded generators. A warning reports
  it.
- Buffers of more than 16 MiB are not sent; a new process gets those of a survivor. A warning reports it, once.
"""

from __future__ import annotations

import enum
import itertools
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.objects import allgather_object
from spark_estimator.log import logger

_MOST_BUFFER_BYTES = 16 << 20
_GENERATORS = 5
#: A full copy is kept at each commit whose number is a multiple of this.
FULL_COPY_COMMITS = 100
_log = logger(__name__)


class RecoveryState(enum.Enum):
    """A rank: COMMITTED to AGREED in ``optimizer.step()``, and back in ``commit()``; LOST until `synced`."""

    FRESH = "no round has begun on this process"
    COMMITTED = "parameters and attributes are those of the last commit"
    AGREED = "parameters are those of the next commit, or are about to be"
    LOST = "a rank was lost while this one was COMMITTED"
    LOST_AGREED = "a rank was lost while this one was AGREED"


@dataclass(frozen=True)
class Facts:
    """What a rank sends to the others when a round begins.

    Attributes:
        state: of its step.
        step: of its last commit.
        rank, size: of the round before; -1: none.
        full: the step of its full copy; -1: none.
    """

    state: RecoveryState
    step: int
    rank: int
    size: int
    full: int

    @property
    def is_whole(self) -> bool:
        """Whether parameters and attributes belong together here."""
        return self.state in (RecoveryState.COMMITTED, RecoveryState.LOST)


@dataclass(frozen=True)
class Resumption:
    """The step at which the job continues; the same on all ranks.

    Attributes:
        root: the rank whose parameters and attributes count.
        step: of the commit.
        from_full: it is a full copy, to which all return.
        spread: not all ranks have that step, so that the root sends it.
    """

    root: int
    step: int
    from_full: bool
    spread: bool


def resumption(facts: Sequence[Facts]) -> Resumption:
    """The step at which to continue.

    Args:
        facts: [ranks] of the new round.
    """
    whole = [rank for rank, each in enumerate(facts) if each.is_whole]
    if whole:
        step = max(facts[rank].step for rank in whole)
        root = next(rank for rank in whole if facts[rank].step == step)
        spread = any(not each.is_whole or each.step != step for each in facts)
        return Resumption(root, step, from_full=False, spread=spread)
    full = max(each.full for each in facts)
    if full < 0:  # the job begins
        return Resumption(0, 0, from_full=False, spread=True)
    return Resumption(next(rank for rank, each in enumerate(facts) if each.full == full), full, True, spread=True)


def ring_target(rank: int, size: int, host_ranks: int) -> int:
    """The rank that keeps what `rank` alone has: one on the next host, where hosts have as many ranks as each other.

    Args:
        host_ranks: the most ranks of a host; the same on all ranks.
    """
    shift = host_ranks if host_ranks < size else 1
    return (rank + shift) % size


@dataclass
class StepKeeper:
    """One rank's data for the recovery within a step.

    Attributes:
        models: whose buffers the rank alone has.
        state: where it is.
        step: of the last commit.
    """

    models: Sequence[torch.nn.Module]
    state: RecoveryState = RecoveryState.FRESH
    step: int = 0
    full: int = -1
    _committed: bytes = b""  # at the last commit
    _interrupted: bytes = b""  # where the step in progress was interrupted
    _kept: dict[tuple[int, int], bytes] = field(default_factory=dict)
    _place: tuple[int, int] = (-1, -1)  # rank and size of this round
    _host_ranks: int = 1
    _warned: bool = False

    def agree(self, *_: Any) -> None:
        """The agreement, as a hook that ``optimizer.step()`` calls first. A collective.

        Raises:
            HorovodInternalError: a rank was lost, so that this one does not take the step.
        """
        if self.state is not RecoveryState.COMMITTED:
            return  # a second step() before the commit, or outside of the training
        if self._place[1] > 1:
            self._kept = {key: value for key, value in self._kept.items() if key[1] == self.step}
            self._exchange(self.step + 1)
            arrays.allgather(numpy.array([self.step], numpy.int64), "elastic.step.agreement")
        self.state = RecoveryState.AGREED

    def committed(self) -> bool:
        """The step has ended. Returns whether a full copy is due."""
        if self.state is RecoveryState.FRESH:
            return True
        self.step += 1
        if self.state is RecoveryState.COMMITTED:  # no step was taken: the copies are those of this commit, too
            of_last = {key: value for key, value in self._kept.items() if key[1] == self.step - 1}
            self._kept = {(source, self.step): value for (source, _), value in of_last.items()}
        self.state = RecoveryState.COMMITTED
        self._committed = self._packed()
        due = self.step % FULL_COPY_COMMITS == 0
        if due:
            self.full = self.step
        return due

    def lost(self) -> bool:
        """Called after the loss of a rank. Returns whether the attributes must be those of the last commit."""
        if self.state in (RecoveryState.COMMITTED, RecoveryState.AGREED):
            self._interrupted = self._packed()
            agreed = self.state is RecoveryState.AGREED
            self.state = RecoveryState.LOST_AGREED if agreed else RecoveryState.LOST
        if self.state is RecoveryState.LOST:
            self._unpack(self._committed)
        return self.state is RecoveryState.LOST

    def facts(self) -> Facts:
        """Of this rank."""
        return Facts(self.state, self.step, *self._place, self.full)

    def receives(self, at: Resumption) -> None:
        """The root is about to send its step: a failure meanwhile leaves a rank that lacks it with parts of both."""
        if self.state is RecoveryState.FRESH:
            return
        if at.from_full or self.state is RecoveryState.LOST_AGREED or self.step != at.step:
            self.state = RecoveryState.LOST_AGREED

    def resume(self, facts: Sequence[Facts], at: Resumption) -> None:
        """Takes what this rank alone has, for the step at which the job continues. A collective.

        Args:
            facts: [ranks] of the new round.
        """
        rank, size = context.rank(), context.size()
        known = {each.size for each in facts if each.rank >= 0}
        stayed = known == {size} and all(each.rank in (-1, new) for new, each in enumerate(facts))
        missing = [new for new, each in enumerate(facts) if each.rank < 0] if stayed and not at.from_full else []
        if missing:
            mine = {new: self._kept[new, at.step] for new in missing if (new, at.step) in self._kept}
            copies: dict[int, bytes] = {}
            for each in allgather_object(mine, name="elastic.step.missing"):
                copies.update(each)
            if rank in copies:
                self._unpack(copies[rank])
            elif rank in missing and at.step:
                _log.warning("rank %d starts with random number generators of its own: their copy was lost, too", rank)
        mine_before = facts[rank]
        if mine_before.rank >= 0 and not at.from_full:
            if mine_before.step == at.step - 1:
                self._unpack(self._interrupted)
            elif mine_before.step == at.step:  # buffers may be the root's
                self._unpack(self._committed)
        self.state, self.step, self._place = RecoveryState.COMMITTED, at.step, (rank, size)
        self.full = at.step
        self._committed, self._interrupted = self._packed(), b""
        self._kept.clear()
        host_ranks = arrays.allgather(numpy.array([context.local_size()], numpy.int64), "elastic.step.hosts")
        self._host_ranks = int(host_ranks.max())
        if size > 1:
            self._exchange(self.step)

    def _exchange(self, step: int) -> None:
        """Sends the state that only this rank has to the next rank of the ring, and keeps what it receives.

        A collective.
        """
        rank, size = self._place
        content = numpy.frombuffer(self._packed(), numpy.uint8)
        splits = [0] * size
        splits[ring_target(rank, size, self._host_ranks)] = len(content)
        received, counts = arrays.alltoall(content, splits, "elastic.step.copies")
        source = next(other for other, count in enumerate(counts) if count)
        self._kept[source, step] = received.tobytes()

    def _packed(self) -> bytes:
        return pack([*_generators(), *(_bytes_of(buffer) for buffer in self._buffers())])

    def _unpack(self, content: bytes) -> None:
        if not content:
            return
        parts = unpack(content)
        _set_generators(parts[:_GENERATORS])
        buffers = self._buffers()
        if len(parts) - _GENERATORS == len(buffers):
            with torch.no_grad():
                for buffer, part in zip(buffers, parts[_GENERATORS:], strict=True):
                    buffer.copy_(torch.frombuffer(bytearray(part), dtype=buffer.dtype).reshape(buffer.shape))

    def _buffers(self) -> list[torch.Tensor]:
        """Those of all models that have values; without the largest where all of them are too large to be kept."""
        buffers = [buffer for model in self.models for _, buffer in model.named_buffers() if buffer.numel()]
        if sum(buffer.nbytes for buffer in buffers) <= _MOST_BUFFER_BYTES:
            return buffers
        by_size = sorted(range(len(buffers)), key=lambda number: buffers[number].nbytes)
        totals = itertools.accumulate(buffers[number].nbytes for number in by_size)
        kept = {number for number, total in zip(by_size, totals, strict=True) if total <= _MOST_BUFFER_BYTES}
        if not self._warned:
            largest = sum(buffer.nbytes for number, buffer in enumerate(buffers) if number not in kept)
            _log.warning(
                "%d buffers of the model, of %d bytes, are not kept for other ranks, as at most %d bytes are. A rank "
                "that replaces a lost one gets those of the rank that sends it the model.",
                len(buffers) - len(kept), largest, _MOST_BUFFER_BYTES,
            )  # fmt: skip
        self._warned = True
        return [buffer for number, buffer in enumerate(buffers) if number in kept]


def pack(parts: Sequence[bytes]) -> bytes:
    """Some byte strings in one, for `unpack`: their number and lengths, as 8 bytes each, then the strings."""
    return struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)) + b"".join(parts)


def unpack(content: bytes) -> list[bytes]:
    """The parts that were passed to `pack`.

    Raises:
        ValueError: `pack` has not made it.
    """
    try:
        (count,) = struct.unpack_from("<q", content)
        lengths = struct.unpack_from(f"<{max(count, 0)}q", content, 8)
    except struct.error as error:
        raise ValueError(f"{len(content)} bytes are no copy of a rank's state: {error}") from error
    bounds = list(itertools.accumulate(lengths, initial=8 * (count + 1)))
    if min(lengths, default=0) < 0 or bounds[-1] != len(content):
        raise ValueError(f"{len(content)} bytes are no copy of a rank's state: its parts have {lengths}")
    return [content[start:stop] for start, stop in itertools.pairwise(bounds)]


def _generators() -> list[bytes]:
    """[_GENERATORS] the states of the random number generators of torch, of Python, of numpy and of the GPU."""
    _, words, gauss = random.getstate()
    state: Any = numpy.random.get_state(legacy=False)
    # numpy.random.set_bit_generator may have replaced the usual one.
    mersenne: Any = (
        state if state["bit_generator"] == "MT19937" else {"state": {"key": numpy.empty(0, "<u4"), "pos": 0}}
    )
    return [
        torch.get_rng_state().numpy().tobytes(),
        struct.pack("<625I?d", *words, gauss is not None, gauss or 0.0),
        mersenne["state"]["key"].astype("<u4").tobytes(),
        struct.pack("<q?d", mersenne["state"]["pos"], mersenne.get("has_gauss", 0), mersenne.get("gauss", 0.0)),
        torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else b"",
    ]


def _set_generators(parts: Sequence[bytes]) -> None:
    """Restores the states that `_generators` returned."""
    of_torch, of_python, keys, of_numpy, of_gpu = parts
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    *words, has_gauss, gauss = struct.unpack("<625I?d", of_python)
    random.setstate((3, tuple(words), gauss if has_gauss else None))
    if keys:
        position, has_cached, cached = struct.unpack("<q?d", of_numpy)
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, "<u4"), position, int(has_cached), cached))
    if of_gpu and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(of_gpu), dtype=torch.uint8))


def _bytes_of(buffer: torch.Tensor) -> bytes:
    return buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
