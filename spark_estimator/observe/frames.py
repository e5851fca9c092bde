"""The frames of the driver channel: four bytes of length, and that much JSON of a few known kinds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from spark_estimator.peer_json import parse_json

MAX_FRAME_BYTES = 1 << 20

# Kinds of frame.
PLACED = "placed"  # rank, host, pid: of the supervisor's worker, sent before it runs anything
BEGUN = "begun"  # rank, host, pid: user code begins
LINE = "line"  # rank, stream, text
LOG = "log"  # rank, text: from log_to_driver
RECORD = "record"  # rank, record: of an estimator's training
FILE = "file"  # rank, name, piece: of a rank's file; an empty piece ends it
PROGRESS = "progress"  # rank, report: fields of its `Progress`; at most one a second
FAILURE = "failure"  # report: fields of a failure report
BYE = "bye"  # the supervisor's work is done
FACTS = "facts"  # facts: of a supervisor, for all others
GATHER = "gather"  # facts are exchanged through Spark: to the driver, for this supervisor; from it, for all
ALIVE = "alive"  # a heartbeat, when there is nothing else to send
# From the driver:
STOP = "stop"  # text: the reason
EVERYONE = "everyone"  # facts: those of the next supervisors, by partition; as many of these frames as they need
# What `DriverServer` itself reports of a supervisor; never sent:
GONE = "gone"  # its connection ended without a BYE; silent_seconds: closed here, as no data arrived for that time
SILENT = "silent"  # seconds, limit: it has sent nothing for this time, and is lost after the limit
HEARD = "heard"  # it sends again

_FIELDS: dict[str, dict[str, type]] = {
    PLACED: {"rank": int, "host": str, "pid": int},
    BEGUN: {"rank": int, "host": str, "pid": int},
    LINE: {"rank": int, "stream": str, "text": str},
    LOG: {"rank": int, "text": str},
    RECORD: {"rank": int, "record": dict},
    FILE: {"rank": int, "name": str, "piece": str},
    PROGRESS: {"rank": int, "report": dict},
    FAILURE: {"report": dict},
    BYE: {},
    ALIVE: {},
    FACTS: {"facts": str},
    STOP: {"text": str},
    EVERYONE: {"facts": list},
    GATHER: {},
}
_LENGTH = struct.Struct(">I")


def encode(frame: dict[str, Any]) -> bytes:
    content = json.dumps(frame).encode()
    return _LENGTH.pack(len(content)) + content


def take_frames(pending: bytearray) -> Iterator[dict[str, Any]]:
    """Take whole frames off the front of `pending`. Raises ValueError: it is no frame, or too long a one."""
    while len(pending) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(pending)
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
        end = _LENGTH.size + length
        if len(pending) < end:
            return
        content = bytes(pending[_LENGTH.size : end])
        del pending[:end]
        yield check_frame(parse_json(content))


def check_frame(frame: Any) -> dict[str, Any]:
    """Return `frame` when it is a frame of this protocol. Raises ValueError: it is not."""
    expected = _FIELDS.get(str(frame.get("kind"))) if isinstance(frame, dict) else None
    if expected is None or not all(isinstance(frame.get(name), kind) for name, kind in expected.items()):
        raise ValueError("a frame of another protocol")
    assert isinstance(frame, dict)
    return frame
