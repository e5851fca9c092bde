"""Frames between server and clients: four bytes of length, HMAC-SHA256 of the content, and the content as JSON."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import time
from typing import Any

from spark_estimator.peer_json import parse_object

_HEAD = struct.Struct(">I32s")
_MOST_BYTES = 16 << 20
#: A process that has proved that it has the key sends its frame at once.
FRAME_SECONDS = 5.0


def encode(message: dict[str, Any]) -> bytes:
    """Return the message as bytes; equal for equal messages."""
    return json.dumps(message, sort_keys=True).encode()


def send(sock: socket.socket, key: bytes, sender: bytes, message: dict[str, Any]) -> None:
    """Send a message. Raise OSError if the connection has ended."""
    content = encode(message)
    sock.settimeout(FRAME_SECONDS)
    sock.sendall(_HEAD.pack(len(content), hmac.digest(key, sender + b"\x01" + content, "sha256")) + content)


def receive(sock: socket.socket, key: bytes, sender: bytes, deadline: float) -> dict[str, Any]:
    """Return the other end's message. Raises OSError or ValueError if none comes before `deadline` (monotonic)."""
    length, code = _HEAD.unpack(_receive_exactly(sock, _HEAD.size, deadline))
    if length > _MOST_BYTES:
        raise ValueError("a frame that is too long")
    content = _receive_exactly(sock, length, deadline)
    if not hmac.compare_digest(code, hmac.digest(key, sender + b"\x01" + content, "sha256")):
        raise ValueError("a frame that was changed on its way")
    return parse_object(content)


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        chunk = sock.recv(count - len(received))
        if not chunk:
            raise ConnectionResetError("the other end closed the connection")
        received += chunk
    return bytes(received)
