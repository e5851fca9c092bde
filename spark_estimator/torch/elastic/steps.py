"""Recovery within a step: after the loss of a rank, the others continue where the last finished step ended.

Promises of ``hvd.elastic.run(mode="step")``
--------------------------------------------
- At most the step in progress is repeated. Parameters and optimizer state are not copied to make that so: they stay as
  the last step has left them, and a rank that lacks a step takes them from one that has it.
- With as many ranks as before, the numbers are those of an undisturbed run, bit for bit: a new process takes the rank
  of the lost one, its random number generators and its buffers (such as those of batch normalization).
- With fewer ranks the job continues, and grows again when a process joins. A rank that has to leave, as its machine is
  taken back, hands over to a process that waits. Both happen at a commit, so no step is repeated.

Order of events in a step
-------------------------
1. Forward and backward, at whose end the gradients are averaged.
2. ``optimizer.step()`` begins with the *agreement*: each rank sends what it alone has, generators and buffers, to the
   next host's rank (ring order), and then all exchange whether other ranks are announced. A rank that has passed the
   agreement knows that all have what the step needs, and that what each rank alone has is in another one's memory.
3. The optimizer changes the parameters, without a collective.
4. ``state.commit()``: the step has ended here. It notes the other attributes of the state.

What fails how
--------------
- A rank is lost before any other has passed the agreement: all discard the step, and repeat it.
- Some have passed the agreement: these finish the step; the others take parameters, optimizer state and attributes from
  one of these, and what they alone have from their own interrupted step.
- What a rank alone has and changes between ``optimizer.step()`` and ``commit()``, such as a buffer or a random number
  that it draws, is not yet in that copy: a new process that replaces a lost rank lacks that of one step.
- A failure between ``optimizer.step()`` and ``commit()``, where there should be no collective, on all ranks: the
  attributes do not belong to the parameters on any rank. Then all go back to the last full copy, which is made when a
  round begins and at each hundredth commit.
- The rank with the copy of a lost one is lost with it: the new process has newly seeded generators. A warning reports
  it.
- Buffers of more than 16 MiB are not sent; a new process gets those of a survivor. A warning reports it, once.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy
import torch

from spark_estimator.collectives import context, launcher_link
from spark_estimator.elastic.peer_copies import PeerCopies, select_smallest
from spark_estimator.elastic.resumption import Facts, RecoveryState, Resumption
from spark_estimator.log import get_logger

_MOST_BUFFER_BYTES = 16 << 20
_GENERATORS = 5
#: A full copy is kept at each commit whose number is a multiple of this.
FULL_COPY_COMMITS = 100
_log = get_logger(__name__)


class RankContent(Protocol):
    """More of what a rank alone has."""

    def pack_result(self) -> bytes:
        """Return it as it is now."""

    def take(self, content: bytes) -> None:
        """Restores what `pack_result` returned, on this rank or on the process that replaces it."""


@runtime_checkable
class HeritableContent(RankContent, Protocol):
    """Content that others take over if no process replaces the rank."""

    def inherit(self, content: bytes) -> None:
        """Add what `pack_result` returned on a lost rank."""


@dataclass
class StepKeeper:
    """One rank's data for the recovery within a step.

    Attributes:
        models: whose buffers the rank alone has.
        content: what else it alone has; None: nothing. That of a rank that is lost and not replaced is lost, too, if
            it is not a `HeritableContent`.
        state: where it is.
        step: of the last commit.
        announced: all ranks have agreed, in their last step, that the job's ranks are about to change.
    """

    models: Sequence[torch.nn.Module]
    content: RankContent | HeritableContent | None = None
    state: RecoveryState = RecoveryState.FRESH
    step: int = 0
    full: int = -1
    announced: bool = False
    _committed: bytes = b""  # at the last commit
    _committed_fully: bytes = b""  # at the last full copy
    _interrupted: bytes = b""  # where the step in progress was interrupted
    _peers: PeerCopies = field(default_factory=PeerCopies)
    _warned: bool = False

    def agree(self, *_: Any) -> None:
        """Agree with the other ranks on the step: the first hook of ``optimizer.step()``. A collective.

        Raises HorovodInternalError: a rank was lost, so that this one does not take the step.
        """
        if self.state is not RecoveryState.COMMITTED:
            return  # a second step() before the commit, or outside of the training
        link = launcher_link.link()
        announced = link is not None and link.take_announcement()
        self.announced = self._peers.agree(
            self._pack() if self._peers.size > 1 else b"", self.step, announced=announced
        )
        self.state = RecoveryState.AGREED

    def hand_over(self) -> None:
        """Send this commit to the rank that keeps it, instead of the step before it: ranks leave here. A collective."""
        if self._peers.size > 1:
            self._peers.begin(self._committed, self.step)

    def note_commit(self) -> bool:
        """Note that the step has ended. Returns whether a full copy is due."""
        if self.state is RecoveryState.FRESH:
            return True
        self.step += 1
        if self.state is RecoveryState.COMMITTED:  # no step was taken: the copies are those of this commit, too
            self._peers.carry_over(self.step)
        self.state = RecoveryState.COMMITTED
        self._committed = self._pack()
        due = self.step % FULL_COPY_COMMITS == 0
        if due:
            self.full, self._committed_fully = self.step, self._committed
        return due

    def note_loss(self, *, exchanged: bool = True) -> bool:
        """Note the loss of a rank. Returns whether the attributes must be those of the last commit.

        Args:
            exchanged: ranks that step alone have the parameters of the exchange that they have agreed on.
        """
        if self.state in (RecoveryState.COMMITTED, RecoveryState.AGREED):
            self._interrupted = self._pack()
            agreed = self.state is RecoveryState.AGREED and exchanged
            self.state = RecoveryState.LOST_AGREED if agreed else RecoveryState.LOST
        if self.state is RecoveryState.LOST:
            self._unpack(self._committed)
        return self.state is RecoveryState.LOST

    def facts(self) -> Facts:
        """Return the facts of this rank."""
        return Facts(self.state, self.step, self._peers.rank, self._peers.size, self.full)

    def note_receiving(self, at: Resumption) -> None:
        """Note that the root is about to send its step: a failure meanwhile leaves a mixture on some ranks."""
        if self.state is RecoveryState.FRESH:
            return
        if at.from_full or self.state is RecoveryState.LOST_AGREED or self.step != at.step:
            self.state = RecoveryState.LOST_AGREED

    def resume(self, facts: Sequence[Facts], at: Resumption) -> None:
        """Take what this rank alone has, for the step at which the job continues. A collective."""
        copy = self._peers.recover(facts, at)
        if copy is not None:
            self._unpack(copy)
        mine_before = facts[context.rank()]
        if mine_before.rank >= 0 and not at.from_full:
            if mine_before.step == at.step - 1:
                self._unpack(self._interrupted)
            elif mine_before.step == at.step:  # buffers may be the root's
                self._unpack(self._committed)
        elif mine_before.rank >= 0 and mine_before.full == at.step:
            self._unpack(self._committed_fully)
        if isinstance(self.content, HeritableContent):
            for of_lost_rank in self._peers.inherit(facts, at):
                self.content.inherit(unpack(of_lost_rank)[_GENERATORS])
        self.state, self.step, self.announced = RecoveryState.COMMITTED, at.step, False
        self.full = at.step
        self._committed, self._interrupted = self._pack(), b""
        self._committed_fully = self._committed
        self._peers.begin(self._committed, self.step)

    def _pack(self) -> bytes:
        content = b"" if self.content is None else self.content.pack_result()
        return pack([*_read_generators(), content, *(_pack_buffer(buffer) for buffer in self._list_buffers())])

    def _unpack(self, content: bytes) -> None:
        if not content:
            return
        sections = unpack(content)
        _set_generators(sections[:_GENERATORS])
        if self.content is not None:
            self.content.take(sections[_GENERATORS])
        buffers, of_buffers = self._list_buffers(), sections[_GENERATORS + 1 :]
        if len(of_buffers) == len(buffers):
            with torch.no_grad():
                for buffer, packed_buffer in zip(buffers, of_buffers, strict=True):
                    value = _unpack_buffer(packed_buffer, buffer.dtype)
                    if value.shape == buffer.shape:
                        buffer.copy_(value)
                    else:  # one that grows
                        buffer.data = value.to(buffer.device)

    def _list_buffers(self) -> list[torch.Tensor]:
        """Return the buffers of all models; without the largest where all of them are too large to be kept."""
        buffers = [buffer for model in self.models for _, buffer in model.named_buffers()]
        if sum(buffer.nbytes for buffer in buffers) <= _MOST_BUFFER_BYTES:
            return buffers
        chosen = select_smallest([buffer.nbytes for buffer in buffers], _MOST_BUFFER_BYTES)
        if not self._warned:
            largest = sum(buffer.nbytes for number, buffer in enumerate(buffers) if number not in chosen)
            _log.warning(
                "%d buffers of the model, of %d bytes, are not kept for other ranks, as at most %d bytes are. A rank "
                "that replaces a lost one gets those of the rank that sends it the model.",
                len(buffers) - len(chosen), largest, _MOST_BUFFER_BYTES,
            )  # fmt: skip
        self._warned = True
        return [buffer for number, buffer in enumerate(buffers) if number in chosen]


def pack(parts: Sequence[bytes]) -> bytes:
    """Join some byte strings to one, for `unpack`: their number and lengths, as 8 bytes each, then the strings."""
    return struct.pack(f"<{len(parts) + 1}q", len(parts), *map(len, parts)) + b"".join(parts)


def unpack(content: bytes) -> list[bytes]:
    """Return the parts that were passed to `pack`. Raises ValueError: `pack` has not made it."""
    try:
        (count,) = struct.unpack_from("<q", content)
        lengths = struct.unpack_from(f"<{max(count, 0)}q", content, 8)
    except struct.error as error:
        raise ValueError(f"{len(content)} bytes are no copy of a rank's state: {error}") from error
    bounds = list(itertools.accumulate(lengths, initial=8 * (count + 1)))
    if min(lengths, default=0) < 0 or bounds[-1] != len(content):
        raise ValueError(f"{len(content)} bytes are no copy of a rank's state: its parts have {lengths}")
    return [content[start:stop] for start, stop in itertools.pairwise(bounds)]


def _read_generators() -> list[bytes]:
    """Return [_GENERATORS] the states of the random number generators of torch, of Python, of numpy and of the GPU."""
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
    """Restores the states that `_read_generators` returned."""
    of_torch, of_python, keys, of_numpy, of_gpu = parts
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    *words, has_gauss, gauss = struct.unpack("<625I?d", of_python)
    random.setstate((3, tuple(words), gauss if has_gauss else None))
    if keys:
        position, has_cached, cached = struct.unpack("<q?d", of_numpy)
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, "<u4"), position, int(has_cached), cached))
    if of_gpu and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(of_gpu), dtype=torch.uint8))


def _pack_buffer(buffer: torch.Tensor) -> bytes:
    """Return its number of dimensions and its shape, as 8 bytes each, then its values."""
    values = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return struct.pack(f"<{buffer.dim() + 1}q", buffer.dim(), *buffer.shape) + values


def _unpack_buffer(content: bytes, dtype: torch.dtype) -> torch.Tensor:
    """Return the buffer that `_pack_buffer` has packed."""
    (dimensions,) = struct.unpack_from("<q", content)
    shape = struct.unpack_from(f"<{dimensions}q", content, 8)
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=8 * (dimensions + 1)).view(dtype).reshape(shape)
    )
