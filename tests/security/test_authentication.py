"""The handshake: only a peer that holds the key is accepted, independent of what others send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from spark_estimator.errors import AuthenticationError
from spark_estimator.security import authentication
from spark_estimator.security.authentication import (
    HANDSHAKE_TIMEOUT,
    Acceptor,
    NotReadyError,
    RefusedError,
    accept,
    connect,
)
from spark_estimator.security.encryption import Session

KEY = bytes(range(32))
SHORT = timedelta(seconds=0.3)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    connector, acceptor = socket.socketpair()
    with connector, acceptor:
        connector.settimeout(60)
        acceptor.settimeout(60)
        yield connector, acceptor


class Aside:
    """Calls a function in a thread; `result` returns its value or raises its error."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._outcome: list[object] = []
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._function())
        except BaseException as error:
            self._outcome.append(error)

    def result(self) -> object:
        self._thread.join(60)
        assert self._outcome, "the other side has not ended after 60 seconds"
        if isinstance(self._outcome[0], BaseException):
            raise self._outcome[0]
        return self._outcome[0]


def relay(source: socket.socket, target: socket.socket) -> bytes:
    """Forwards the available data, and returns it."""
    data = source.recv(4096)
    target.sendall(data)
    return data


@pytest.mark.parametrize("context", [b"", b"x", b"\x00" * 47, bytes(range(47))])
def test_both_ends_know_each_other(pair: tuple[socket.socket, socket.socket], context: bytes) -> None:
    aside = Aside(lambda: accept(pair[1], KEY))
    connect(pair[0], KEY, context)
    assert aside.result() == context
    assert [sock.gettimeout() for sock in pair] == [60, 60]
    pair[0].sendall(b"afterwards")
    assert pair[1].recv(100) == b"afterwards"


def test_a_context_that_is_too_long_is_the_callers_mistake(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(ValueError, match="48 bytes; at most 47"):
        connect(pair[0], KEY, b"x" * 48)


def test_another_key_is_refused_by_both(pair: tuple[socket.socket, socket.socket]) -> None:
    def acceptor() -> None:
        try:
            accept(pair[1], KEY)
        finally:
            pair[1].close()

    aside = Aside(acceptor)
    with pytest.raises(AuthenticationError, match="closed the connection") as raised:
        connect(pair[0], bytes(32), b"")
    assert not isinstance(raised.value, (NotReadyError, RefusedError))
    with pytest.raises(AuthenticationError, match="does not hold this job's key"):
        aside.result()


def test_an_acceptor_without_the_key_is_found_out(pair: tuple[socket.socket, socket.socket]) -> None:
    aside = Aside(lambda: connect(pair[0], KEY, b""))
    pair[1].recv(4096)
    pair[1].sendall(authentication._CHALLENGE.pack(authentication._MAGIC, b"accept", 0, bytes(32)))
    pair[1].recv(4096)
    pair[1].sendall(bytes(32))
    with pytest.raises(AuthenticationError, match="does not hold this job's key"):
        aside.result()


def test_a_refusal_is_told_and_proved(pair: tuple[socket.socket, socket.socket]) -> None:
    def refuse(context: bytes) -> None:
        raise AuthenticationError(f"no {context!r} here")

    aside = Aside(lambda: accept(pair[1], KEY, approve=refuse))
    with pytest.raises(RefusedError, match="refused this connection"):
        connect(pair[0], KEY, b"round 7")
    with pytest.raises(AuthenticationError, match="no b'round 7' here"):
        aside.result()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00",
        b"\xff" * 5000,
        b"SPKEST\x00\x02" + bytes(200),  # a later version
        b"SPKEST\x00\x02" + b"accept\x00" + bytes(200),  # the wrong role
        b"SPKEST\x00\x02" + b"connect" + b"\xff" + bytes(200),  # a context longer than there is room for
    ],
)
def test_garbage_is_refused_at_once(pair: tuple[socket.socket, socket.socket], garbage: bytes) -> None:
    pair[0].sendall(garbage)
    with pytest.raises(AuthenticationError):
        accept(pair[1], KEY, timeout=timedelta(seconds=100))


@pytest.mark.parametrize("sent", [b"", b"SPKEST", b"SPKEST\x00\x02connect"])
def test_silence_ends_at_the_deadline(pair: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    pair[0].sendall(sent)
    with pytest.raises(AuthenticationError, match=r"within 0\.3 seconds"):
        accept(pair[1], KEY, timeout=SHORT)
    with pytest.raises(NotReadyError, match=r"within 0\.3 seconds"):
        connect(pair[0], KEY, b"", timeout=SHORT)


def test_dripping_bytes_do_not_move_the_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    stop = threading.Event()

    def drip() -> None:
        for byte in b"SPKEST\x00\x02connect" + bytes(64):
            pair[0].sendall(bytes([byte]))
            if stop.wait(0.05):
                return

    aside = Aside(drip)
    with pytest.raises(AuthenticationError, match="within"):
        accept(pair[1], KEY, timeout=SHORT)
    stop.set()
    aside.result()


def test_a_connection_closed_at_once_may_be_tried_again(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(NotReadyError, match="closed the connection"):
        connect(pair[0], KEY, b"")


def test_an_acceptor_that_leaves_the_proof_unread_has_judged_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    connector, acceptor = pair

    def challenge_and_leave() -> None:
        hello = acceptor.recv(authentication._HELLO.size, socket.MSG_WAITALL)
        assert len(hello) == authentication._HELLO.size
        challenge = Acceptor(KEY).receive(hello)
        acceptor.sendall(challenge)
        assert acceptor.recv(1, socket.MSG_PEEK)  # the proof is there
        acceptor.close()

    thread = threading.Thread(target=challenge_and_leave)
    thread.start()
    with pytest.raises(NotReadyError, match="closed the connection"):
        connect(connector, KEY, b"")
    thread.join()


def test_a_recorded_handshake_opens_nothing() -> None:
    (connector, relay_in), (relay_out, acceptor) = socket.socketpair(), socket.socketpair()
    with connector, relay_in, relay_out, acceptor:
        accepted = Aside(lambda: accept(acceptor, KEY))
        connected = Aside(lambda: connect(connector, KEY, b"recorded"))
        hello = relay(relay_in, relay_out)
        relay(relay_out, relay_in)
        proof = relay(relay_in, relay_out)
        relay(relay_out, relay_in)
        connected.result()
        assert accepted.result() == b"recorded"
    replayer, acceptor = socket.socketpair()
    with replayer, acceptor:
        again = Aside(lambda: accept(acceptor, KEY))
        replayer.sendall(hello)
        replayer.recv(4096)
        replayer.sendall(proof)
        with pytest.raises(AuthenticationError, match="does not hold"):
            again.result()


def test_an_altered_context_is_noticed() -> None:
    (connector, relay_in), (relay_out, acceptor) = socket.socketpair(), socket.socketpair()
    with connector, relay_in, relay_out, acceptor:
        accepted = Aside(lambda: accept(acceptor, KEY))
        connected = Aside(lambda: connect(connector, KEY, b"rank 1"))
        relay_out.sendall(relay_in.recv(4096).replace(b"rank 1", b"rank 0"))
        relay(relay_out, relay_in)
        relay(relay_in, relay_out)
        with pytest.raises(AuthenticationError):
            accepted.result()
        relay_in.close()
        with pytest.raises(AuthenticationError):
            connected.result()


def test_a_connector_cannot_be_its_own_acceptor(pair: tuple[socket.socket, socket.socket]) -> None:
    """Reflection: all that the connector sends is returned to it."""
    aside = Aside(lambda: connect(pair[0], KEY, b"", timeout=timedelta(seconds=5)))
    pair[1].sendall(pair[1].recv(4096))
    with pytest.raises(AuthenticationError, match="wrong role"):
        aside.result()


def test_a_proof_sent_back_to_its_maker_proves_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    aside = Aside(lambda: connect(pair[0], KEY, b""))
    pair[1].recv(4096)
    pair[1].sendall(authentication._CHALLENGE.pack(authentication._MAGIC, b"accept", 0, bytes(32)))
    pair[1].sendall(pair[1].recv(4096))
    with pytest.raises(AuthenticationError, match="does not hold"):
        aside.result()


def test_an_acceptor_computes_nothing_for_a_stranger(pair: tuple[socket.socket, socket.socket]) -> None:
    """Before the connector has proved itself, it sends only a nonce."""
    aside = Aside(lambda: accept(pair[1], KEY))
    pair[0].sendall(authentication._HELLO.pack(authentication._MAGIC, b"connect", 0, 0, b"", bytes(32)))
    magic, role, _, nonce = authentication._CHALLENGE.unpack(pair[0].recv(4096))
    assert (magic, role.rstrip(b"\x00")) == (authentication._MAGIC, b"accept")
    assert any(nonce)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(AuthenticationError):
        aside.result()
    pair[1].close()
    assert pair[0].recv(4096) == b""


def test_messages_before_authentication_are_small() -> None:
    sizes = [authentication._HELLO.size, authentication._CHALLENGE.size, authentication._PROOF_BYTES]
    assert max(sizes) < 128
    assert HANDSHAKE_TIMEOUT.total_seconds() == 5


def handshake(pair: tuple[socket.socket, socket.socket], connector: bool, acceptor: bool) -> list[Session | None]:
    """Runs a handshake whose ends encrypt or don't; the sessions of connector and acceptor."""
    accepting = Acceptor(KEY, encrypted=acceptor)

    def accept_there() -> Session | None:
        try:
            while accepting.missing:
                pair[1].sendall(accepting.receive(pair[1].recv(accepting.missing)))
        except BaseException:
            pair[1].close()
            raise
        return accepting.session

    aside = Aside(accept_there)
    session = connect(pair[0], KEY, b"context", encrypted=connector)
    there = aside.result()
    assert there is None or isinstance(there, Session)
    return [session, there]


def test_an_encrypted_handshake_gives_both_ends_secrets(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = handshake(pair, True, True)
    assert here is not None and there is not None
    assert (here.send, here.receive, here.cipher) == (there.receive, there.send, there.cipher)
    assert here.send != here.receive
    again, _ = handshake(pair, True, True)
    assert again is not None and again.send != here.send, "each handshake has keys of its own"
    assert handshake(pair, False, False) == [None, None]
    assert here.send.hex() not in repr(here) and repr(here.send) not in repr(here)


@pytest.mark.parametrize("connector", [True, False])
def test_ends_of_which_one_encrypts_refuse_each_other(
    pair: tuple[socket.socket, socket.socket], connector: bool
) -> None:
    with pytest.raises(AuthenticationError, match=r"this end (encrypts|doesn't encrypt).*SPARK_ESTIMATOR_ENCRYPTION"):
        handshake(pair, connector, not connector)


def test_nobody_in_between_can_turn_encryption_off() -> None:
    """Both flags are cleared in flight: each end believes that the other doesn't encrypt, or finds the change."""
    for clear_challenge in (True, False):
        (connector, relay_in), (relay_out, acceptor) = socket.socketpair(), socket.socketpair()
        with connector, relay_in, relay_out, acceptor:
            accepting = Acceptor(KEY, encrypted=True)

            def accept_there(accepting: Acceptor = accepting, acceptor: socket.socket = acceptor) -> None:
                while accepting.missing:
                    data = acceptor.recv(accepting.missing)
                    if not data:
                        raise AuthenticationError("closed")
                    acceptor.sendall(accepting.receive(data))

            accepted = Aside(accept_there)
            connected = Aside(lambda connector=connector: connect(connector, KEY, b"", encrypted=True))
            hello = bytearray(relay_in.recv(4096))
            hello[15] = 0  # the flags follow magic and role
            relay_out.sendall(hello)
            challenge = bytearray(relay_out.recv(4096))
            if clear_challenge:
                challenge[15] = 0
            relay_in.sendall(challenge)
            if not clear_challenge:  # else the connector has given up
                relay_out.sendall(relay_in.recv(4096))
            relay_out.shutdown(socket.SHUT_WR)
            relay_in.close()
            for end in (accepted, connected):
                with pytest.raises(AuthenticationError):
                    end.result()
        assert accepting.session is None
