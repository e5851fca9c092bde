"""Accepts connections and passes on those whose peer has the job's key, also while others flood the port."""

from __future__ import annotations

import errno
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from spark_estimator.errors import AuthenticationError
from spark_estimator.log import get_logger
from spark_estimator.posix import AF_UNIX, IS_WINDOWS, resource
from spark_estimator.reader_thread import ReaderThread
from spark_estimator.security.authentication import (
    BUSY,
    HANDSHAKE_TIMEOUT,
    Acceptor,
    AcceptState,
    get_peer_credentials,
    require_same_user,
)
from spark_estimator.security.encryption import Session

_MAX_HANDSHAKES = 1024
# Handshakes may use this part of the process's file descriptors.
_DESCRIPTOR_SHARE = 4
# Accepted in a row, before those that have been accepted get their turn.
_BATCH = 64
# The kernel cuts it to net.core.somaxconn.
_BACKLOG = 4096
_PAUSE_SECONDS = 0.1

_log = get_logger(__name__)


class _Handshake:
    """One connection that has not been authenticated yet."""

    def __init__(self, sock: socket.socket, origin: str, acceptor: Acceptor, deadline: float) -> None:
        self.sock = sock
        self.descriptor = sock.fileno()  # the socket's may be closed once it is passed on
        self.origin = origin
        self.acceptor = acceptor
        self.deadline = deadline

    def advance(self) -> bool:
        """Take what has arrived. Return whether the connector is authenticated.

        Raises AuthenticationError: it has no key, is refused, or has disconnected; OSError: the connection broke.
        """
        while self.acceptor.missing:
            try:
                data = self.sock.recv(self.acceptor.missing)
            except BlockingIOError:
                return False
            if not data:
                raise AuthenticationError("the other end closed the connection during the handshake")
            answer = self.acceptor.receive(data)
            # The socket's buffer is empty: so few bytes always fit.
            if answer and self.sock.send(answer) != len(answer):
                raise AuthenticationError("the other end takes no data")
        if self.acceptor.refusal is not None:
            raise self.acceptor.refusal
        return True


@dataclass
class _Handshakes:
    """The handshakes in progress. All but these attributes are the arguments of `HandshakeServer`.

    Attributes:
        selector: reports the connections that have data.
        in_progress: by descriptor; the oldest first.
    """

    key: bytes
    admit: Callable[[socket.socket, bytes, str, Session | None], None]
    approve: Callable[[bytes], None] | None
    timeout: float
    capacity: int
    name: str
    encrypted: bool
    selector: selectors.BaseSelector
    in_progress: dict[int, _Handshake] = field(default_factory=dict)
    has_evicted: bool = False

    def add(self, sock: socket.socket, address: object) -> None:
        """Begin the handshake of a new connection."""
        if len(self.in_progress) >= self.capacity:
            self.evict()
        sock.setblocking(False)
        acceptor = Acceptor(self.key, self.approve, encrypted=self.encrypted and sock.family != AF_UNIX)
        handshake = _Handshake(sock, _describe_origin(sock, address), acceptor, time.monotonic() + self.timeout)
        self.in_progress[handshake.descriptor] = handshake
        self.selector.register(sock, selectors.EVENT_READ)
        if sock.family == AF_UNIX:
            try:
                require_same_user(sock)
            except AuthenticationError as error:
                self._drop(handshake, str(error))

    def advance(self, handshake: _Handshake) -> None:
        """Take what has arrived, and pass the connection on once it is authenticated."""
        try:
            if not handshake.advance():
                return
            self.selector.unregister(handshake.descriptor)
            handshake.sock.setblocking(True)
            acceptor = handshake.acceptor
            self.admit(handshake.sock, acceptor.context, handshake.origin, acceptor.session)
        except (AuthenticationError, OSError) as error:
            self._drop(handshake, str(error))
        except Exception:
            _log.exception("%s failed to take a connection from %s", self.name, handshake.origin)
            self._drop(handshake, "it could not be taken")
        else:
            del self.in_progress[handshake.descriptor]

    def close_overdue(self, now: float) -> None:
        """Close handshakes that took too long."""
        for handshake in list(self.in_progress.values()):
            if handshake.deadline > now:
                return
            # This process may be the one that got no processor time: what has arrived by now counts.
            state = handshake.acceptor.state
            self.advance(handshake)
            if self.in_progress.get(handshake.descriptor) is not handshake:
                continue
            if handshake.acceptor.state is not state:
                handshake.deadline = now + self.timeout
                self.in_progress[handshake.descriptor] = self.in_progress.pop(handshake.descriptor)
                continue
            self._turn_away(handshake, f"the other end did not complete the handshake within {self.timeout:g} seconds")

    def evict(self) -> None:
        """Close the oldest handshake."""
        handshake = next(iter(self.in_progress.values()))
        if not self.has_evicted:
            _log.warning(
                "%s has %d connections that have not proved that they hold the job's key (the oldest from %s): it "
                "closes the oldest for each that comes.",
                self.name,
                len(self.in_progress),
                handshake.origin,
            )
        self.has_evicted = True
        self._turn_away(handshake, "others came after it")

    def _turn_away(self, handshake: _Handshake, reason: str) -> None:
        """Close a handshake that may be valid. If the other end holds the key, it tries again."""
        if handshake.acceptor.state is AcceptState.PROOF:
            with suppress(OSError):
                handshake.sock.send(BUSY)
        self._drop(handshake, reason)

    def _drop(self, handshake: _Handshake, reason: str) -> None:
        _log.info("%s refused a connection from %s: %s", self.name, handshake.origin, reason)
        del self.in_progress[handshake.descriptor]
        with suppress(KeyError):
            self.selector.unregister(handshake.descriptor)
        handshake.sock.close()


class HandshakeServer:
    """A thread that accepts connections from listening sockets and passes on those whose peer holds the key.

    All handshakes advance side by side in this one thread: a silent peer does not delay the others. At most `capacity`
    are in progress: where there are more, the oldest makes room for the newest. A connector with the key that lost its
    place tries again (`authentication.dial`). A connection over a Unix socket must also come from this process's user.
    A connection that fails is closed. No allocation depends on a size that an unauthenticated peer sends.

    Args:
        listeners: listening stream sockets; the server takes ownership of them.
        key: the secret of the job.
        admit: called with each authenticated socket, its context, the peer's address as text, and the secrets of an
            encrypted connection or None, in the server's thread; it must not block. It takes ownership of the socket
            unless it raises.
        approve: as for `authentication.Acceptor`.
        timeout: of each handshake.
        capacity: handshakes at a time; None: 1024, or a quarter of the process's file descriptors if they are fewer.
        name: of the thread, and of the server in messages.
        encrypted: whether connections will be encrypted, except those over Unix sockets, which stay in this host.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        key: bytes,
        admit: Callable[[socket.socket, bytes, str, Session | None], None],
        *,
        approve: Callable[[bytes], None] | None = None,
        timeout: timedelta = HANDSHAKE_TIMEOUT,
        capacity: int | None = None,
        name: str = "handshake server",
        encrypted: bool = False,
    ) -> None:
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._name = name
        # Held while sockets are accepted, passed on or closed: a fork waits for that.
        self._lock = threading.Lock()
        self._closed = False
        self._accept_error: OSError | None = None  # of the last accept(); None if it succeeded
        self._wake_read, self._wake_write = socket.socketpair()
        # poll, not epoll: an epoll descriptor is shared with forked children, and so is what they do to it.
        self._selector = getattr(selectors, "PollSelector", selectors.SelectSelector)()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        capacity = _choose_capacity() if capacity is None else capacity
        self._handshakes = _Handshakes(
            key, admit, approve, timeout.total_seconds(), capacity, name, encrypted, self._selector
        )
        for listener in listeners:
            listener.setblocking(False)
            listener.listen(_BACKLOG)
        self._watch_listeners()
        self._thread = ReaderThread(self._serve, self._end, name=name)
        self._thread.start()

    @property
    def lacks_descriptors(self) -> bool:
        """Return whether a connection waits because this process has no free file descriptor to accept it."""
        return self._accept_error is not None and self._accept_error.errno in (errno.EMFILE, errno.ENFILE)

    def close(self) -> None:
        """Stop listening and abort handshakes in progress. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with suppress(OSError):
            self._wake_write.send(b"\x00")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._close_sockets()

    def before_fork(self) -> None:
        """Block new connections until after the fork, so that the child knows every socket that it inherits."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Accept new connections again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Close the child's copies of all sockets and send nothing on them. The parent continues to listen."""
        self._closed = True
        self._lock = threading.Lock()
        self._close_sockets()

    def _close_sockets(self) -> None:
        in_handshake = [handshake.sock for handshake in self._handshakes.in_progress.values()]
        for sock in [*self._listeners.values(), *in_handshake, self._wake_read, self._wake_write]:
            with suppress(OSError):
                sock.close()
        self._handshakes.in_progress.clear()

    def _serve(self) -> None:
        resume_at = None  # when the listeners are polled again, after accept() has failed
        while True:
            events = self._selector.select(self._compute_wait(resume_at))
            if self._closed:
                return
            for (_, descriptor, *_), _ in events:
                with self._lock:
                    if descriptor in self._listeners and resume_at is None:
                        if not self._accept_from(self._listeners[descriptor]):
                            resume_at = time.monotonic() + _PAUSE_SECONDS
                            for listener in self._listeners.values():
                                self._selector.unregister(listener)
                    elif descriptor in self._handshakes.in_progress:
                        self._handshakes.advance(self._handshakes.in_progress[descriptor])
            with self._lock:
                now = time.monotonic()
                if resume_at is not None and now >= resume_at:
                    resume_at = None
                    self._watch_listeners()
                self._handshakes.close_overdue(now)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:  # peers are refused from now on, and do not wait for an answer
            _log.error("%s accepts no more connections: %r", self._name, error)
            self._closed = True
            self._close_sockets()

    def _compute_wait(self, resume_at: float | None) -> float | None:
        """Return the seconds until the oldest handshake's deadline or `resume_at`; None if there is neither."""
        deadlines = [] if resume_at is None else [resume_at]
        if self._handshakes.in_progress:
            deadlines.append(next(iter(self._handshakes.in_progress.values())).deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _watch_listeners(self) -> None:
        for listener in self._listeners.values():
            self._selector.register(listener, selectors.EVENT_READ)

    def _accept_from(self, listener: socket.socket) -> bool:
        """Accept connections that wait. Return False if that must pause."""
        for _ in range(_BATCH):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, ConnectionError):
                break  # none is left, or the peer disconnected meanwhile
            except OSError as error:
                if self._handshakes.in_progress and error.errno in (errno.EMFILE, errno.ENFILE):
                    self._handshakes.evict()
                    continue
                # Most likely out of descriptors. The connection stays in the queue; without a pause this would spin.
                if self._accept_error is None:
                    _log.warning("%s can't accept a connection, and will retry: %s", self._name, error)
                self._accept_error = error
                return False
            self._handshakes.add(sock, address)
        self._accept_error = None
        return True


def _choose_capacity() -> int:
    # select(), on Windows, takes 512 sockets. Negative: no limit.
    limit = 2000 if IS_WINDOWS else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_HANDSHAKES if limit < 0 else min(_MAX_HANDSHAKES, limit // _DESCRIPTOR_SHARE)


def _describe_origin(sock: socket.socket, address: object) -> str:
    """Return the peer of a connection, as text for messages."""
    if sock.family == AF_UNIX:
        with suppress(OSError):
            credentials = get_peer_credentials(sock)
            return "this host" if credentials is None else f"pid {credentials[0]} of this host"
    return f"{address[0]} port {address[1]}" if isinstance(address, tuple) else str(address)
