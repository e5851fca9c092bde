"""The socket between a rank of an elastic job and its launcher: how a process gets its next rank.

It is one end of an unnamed pair of sockets that the process inherits, so no other process can use it, and a key may be
sent on it as it does on a worker's standard input. On it there are frames, four bytes of length and that much JSON:

==========  ======  ==================================================================================================
`READY`     up      this process has left its round, and waits: where it now listens, whether it holds the state, which
                    ranks were silent, why it left
`UPDATED`   down    a new process waits to join: leave the round at the next commit
`WARNED`    both    this process's machine is about to be taken back, and why
`OVER`      down    the present round has lost a rank: a process that is still connecting for it stops waiting
`ROUND`     down    the next round: the process's number in it, its peers, and a key of that round's own
==========  ======  ==================================================================================================
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from spark_estimator.collectives import preemption
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.rendezvous import Endpoint, PeerFacts, Rendezvous
from spark_estimator.collectives.torch_variables import make_torch_variables
from spark_estimator.env import set_rank_variables
from spark_estimator.errors import JobFailedError, remove_links
from spark_estimator.peer_json import parse_object
from spark_estimator.posix import register_at_fork

READY, UPDATED, WARNED, OVER, ROUND = "ready", "updated", "warned", "over", "round"

# How the engine, and `init()`, report a rank whose connection is open but which sends nothing.
_SILENT = re.compile(r"\brank (\d+)(?: on (?:(?!\brank \d).)*?)? is lost: it has \w+ no [a-z ]+ for ")
_ABSENT = re.compile(r"^init\(\) on .*?: (rank .*?) (?:did not connect within|could not be reached)")
_RANK = re.compile(r"\brank (\d+) \(")
_LENGTH = struct.Struct(">I")
_MAX_BYTES = 16 << 20
# A process that still reads accepts a frame within this time; one that does not has stopped.
_SEND_SECONDS = 5.0


@dataclass(frozen=True)
class Ready:
    """The report of a process that waits for its next round.

    Attributes:
        facts: where it listens; the rank in it is the former one, and has no meaning.
        holds_state: it has once taken over the state of its job, so that others may have it from here.
        silent: ranks of the round that it left which sent it no heartbeat, or did not connect.
        why: why it left, for people; '' for one that has been in no round yet.
        commits: how often it has committed in the round that it left.
        keeps_ranks: processes that stay are to keep their ranks, and new ones to have those of lost ones.
    """

    facts: PeerFacts
    holds_state: bool = False
    silent: tuple[int, ...] = ()
    why: str = ""
    commits: int = 0
    keeps_ranks: bool = False

    def to_message(self) -> dict[str, Any]:
        """Return the frame."""
        return {"kind": READY, **asdict(self)}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Ready:
        """Make one from a frame. Raises ValueError when the frame is not a `READY` frame."""
        try:
            fields = {name: value for name, value in message.items() if name != "kind"}
            fields["facts"] = PeerFacts(**fields["facts"])
            fields["silent"] = tuple(int(rank) for rank in fields["silent"])
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a malformed frame of kind {READY!r}: {error!r}") from error


def pack(message: Mapping[str, Any]) -> bytes:
    """Return the frame of a message."""
    content = json.dumps(message).encode()
    return _LENGTH.pack(len(content)) + content


def take(pending: bytearray) -> dict[str, Any] | None:
    """Take a whole frame off the front of `pending`; None while there is none. Raises ValueError: it is no frame."""
    if len(pending) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(pending)
    if length > _MAX_BYTES:
        raise ValueError(f"a frame of {length} bytes; at most {_MAX_BYTES} are allowed")
    end = _LENGTH.size + length
    if len(pending) < end:
        return None
    content = bytes(pending[_LENGTH.size : end])
    del pending[:end]
    return parse_object(content)


class FrameSocket:
    """One end of the pair. `send` from any thread, `receive` from one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._pending = bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a frame. Raise OSError if the other end has closed the link, or reads nothing for some seconds."""
        view = memoryview(pack(message))
        deadline = time.monotonic() + _SEND_SECONDS
        poll = select.poll()  # not select(), which takes no descriptor above 1023
        with self._sending:
            poll.register(self._sock, select.POLLOUT)
            while view:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError(f"the other end has read nothing for {_SEND_SECONDS:g} seconds")
                view = view[self._sock.send(view, socket.MSG_DONTWAIT) :]

    def receive(self, *, wait: bool) -> dict[str, Any] | None:
        """Return the next frame, if any. Raises EOFError: the link was closed; ValueError: it is no frame."""
        while True:
            if (message := take(self._pending)) is not None:
                return message
            try:
                received = self._sock.recv(1 << 16, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except ConnectionError:
                received = b""
            if not received:
                raise EOFError
            self._pending += received

    def close(self) -> None:
        """Close this end; a `receive` of the other then ends."""
        self._sock.close()


class LauncherLink:
    """A rank's end.

    Attributes:
        holds_state, silent, why, commits, keeps_ranks: as in `Ready`; the caller sets them before `await_next_round`.
        most_ranks: of the largest round that this process was assigned to, also of one that has lost a rank
            before it began; 0 in its first.
    """

    def __init__(self, descriptor: int) -> None:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        self._link = FrameSocket(sock)
        self.holds_state = False
        self.silent: tuple[int, ...] = ()
        self.why = ""
        self.commits = 0
        self.keeps_ranks = False
        self.most_ranks = 0
        self._updates = 0
        self._over = False
        self._has_warned = False

    def take_announcement(self) -> bool:
        """Return whether the launcher has announced other ranks since the last call. Raise JobFailedError: it ended."""
        self.exchange_warnings()
        updates, self._updates = self._updates, 0
        return updates > 0

    def round_is_over(self) -> bool:
        """Return whether the launcher has reported a lost rank of the present round. Raises as `take_announcement`."""
        self._read_frames()
        return self._over

    def exchange_warnings(self) -> None:
        """Tell the launcher of a warning (`preemption`), and learn of one from it. Raises as `take_announcement`."""
        self._read_frames()
        reason = preemption.watch().reason
        if reason and not self._has_warned:
            self._has_warned = True
            try:
                self._link.send({"kind": WARNED, "reason": reason})
            except OSError:
                raise _make_gone_error() from None

    def _read_frames(self) -> None:
        try:
            while (message := self._link.receive(wait=False)) is not None:
                self._take(message)
        except EOFError:
            raise _make_gone_error() from None

    def _take(self, message: Mapping[str, Any]) -> None:
        kind = message.get("kind")
        self._updates += kind == UPDATED
        self._over |= kind == OVER
        if kind == WARNED:
            preemption.watch().note(str(message.get("reason")))

    def store_reason(self, error: BaseException) -> None:
        """Store what ended this round, for this process's next request to the launcher."""
        self.why = remove_links(str(error))
        self.silent = parse_silent_ranks(self.why)

    def await_next_round(self, former: Rendezvous) -> Rendezvous:
        """Wait until the launcher has gathered the ranks of the next round. ``init()`` then joins that one.

        Raises JobFailedError: the launcher has ended.
        """
        own_facts = former.peers[former.rank]
        endpoint = None if former.awaited else Endpoint.open(own_facts.address)
        try:
            facts = own_facts if endpoint is None else endpoint.facts(own_facts.rank)
            facts = replace(facts, pid=os.getpid())
            try:
                ready = Ready(facts, self.holds_state, self.silent, self.why, self.commits, self.keeps_ranks)
                self._link.send(ready.to_message())
                # Announcements before the round are about processes that are now part of it.
                while (message := self._link.receive(wait=True)) is not None and message.get("kind") != ROUND:
                    self._take(message)
            except (EOFError, OSError):
                raise _make_gone_error() from None
            assert message is not None
            coming = Rendezvous.from_json(str(message["rendezvous"]))
        except BaseException:
            if endpoint is not None:
                endpoint.close()
            raise
        descriptors = (former.listen_fd, former.local_fd) if endpoint is None else endpoint.detach()
        coming = replace(
            coming, listen_fd=descriptors[0], local_fd=descriptors[1], launcher_fd=former.launcher_fd, awaited=False
        )
        self.silent, self.why, self.commits, self._updates, self._over = (), "", 0, 0, False
        self.most_ranks = max(self.most_ranks, len(former.peers), len(coming.peers))
        host = coming.peers[coming.rank].host  # as the launcher calls it
        set_rank_variables(coming.topology, host, make_torch_variables(coming))
        rendezvous_module.set_current(coming)
        return coming

    def close(self) -> None:
        """Leaves the launcher to itself."""
        self._link.close()


_link: LauncherLink | None = None


def link() -> LauncherLink | None:
    """Return this process's link with its launcher; None before ``init()``, and in a job that is not elastic."""
    return _link


def await_admission(rendezvous: Rendezvous) -> Rendezvous:
    """Return the rendezvous to join by: `rendezvous`, or the launcher's next one if it started the process later."""
    global _link
    if _link is None:
        _link = LauncherLink(rendezvous.launcher_fd)
    return _link.await_next_round(rendezvous) if rendezvous.awaited else rendezvous


def parse_silent_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks that an error's text reports as silent or not connected; [ascending]."""
    absent = _ABSENT.search(text)
    ranks = _RANK.findall(absent[1]) if absent else _SILENT.findall(text)
    return tuple(sorted({int(rank) for rank in ranks}))


def _make_gone_error() -> JobFailedError:
    return JobFailedError("the launcher of this elastic job has ended, so its present ranks are unknown.")


def _after_fork_in_child() -> None:
    """Close the link in a child, which is no rank: the launcher must not wait for a rank that has died."""
    global _link
    if _link is not None:
        _link.close()
        _link = None


register_at_fork(after_in_child=_after_fork_in_child)
