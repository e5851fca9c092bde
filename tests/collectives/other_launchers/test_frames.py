"""A frame arrives as it was sent, or is refused."""

from __future__ import annotations

import socket
import time

import pytest

from spark_estimator.collectives.other_launchers.frames import receive, send

KEY = b"k" * 32


def test_a_message_arrives_and_a_changed_one_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        send(left, KEY, b"server", {"b": 1, "a": [2]})
        assert receive(right, KEY, b"server", time.monotonic() + 10) == {"a": [2], "b": 1}
        send(left, KEY, b"server", {})
        with pytest.raises(ValueError, match="changed on its way"):
            receive(right, KEY, b"client", time.monotonic() + 10)
        left.sendall(b"\xff" * 36)
        with pytest.raises(ValueError, match="too long"):
            receive(right, KEY, b"server", time.monotonic() + 10)
        left.close()
        with pytest.raises(ConnectionResetError):
            receive(right, KEY, b"server", time.monotonic() + 10)
