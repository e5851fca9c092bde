"""Commits that deltalake does not write, for tests too: deletion vectors, other names and wider types of columns."""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

# Delta's alphabet (Z85) for each character of Python's.
_Z85 = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)


def read_actions(table: Path) -> list[dict[str, Any]]:
    """Return the actions of all versions."""
    texts = [path.read_text() for path in sorted((table / "_delta_log").glob("*.json"))]
    return [json.loads(line) for text in texts for line in text.splitlines() if line.strip()]


def commit(table: Path, actions: Iterable[dict[str, Any]]) -> None:
    """Write the next version."""
    version = max(int(path.stem) for path in (table / "_delta_log").glob("*.json")) + 1
    path = table / "_delta_log" / f"{version:020}.json"
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def find_adds(table: Path) -> list[dict[str, Any]]:
    """Return the actions of the present files, by path."""
    present: dict[str, dict[str, Any]] = {}
    for action in read_actions(table):
        if "remove" in action:
            present.pop(action["remove"]["path"], None)
        if "add" in action:
            present[action["add"]["path"]] = action["add"]
    return [present[path] for path in sorted(present)]


def delete_rows(table: Path, add: dict[str, Any], rows: Sequence[int], inline: bool) -> None:
    """Commit a deletion vector of a file, inline or as a file, that replaces the one it has."""
    data = _to_bitmap(sorted(rows))
    vector = {"storageType": "i", "pathOrInlineDv": _encode(data), "sizeInBytes": len(data), "cardinality": len(rows)}
    if not inline:
        name = uuid.uuid4()
        content = b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        (table / "ab").mkdir(exist_ok=True)
        (table / "ab" / f"deletion_vector_{name}.bin").write_bytes(content)
        vector |= {"storageType": "u", "pathOrInlineDv": "ab" + _encode(name.bytes), "offset": 1}
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    if "deletionVector" in add:
        removed["deletionVector"] = add["deletionVector"]
    commit(table, [{"remove": removed}, {"add": {**add, "deletionVector": vector, "dataChange": True}}])


def make_protocol(features: Sequence[str]) -> dict[str, Any]:
    """Return the protocol of a table with these features."""
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": list(features),
        "writerFeatures": list(features),
    }


def edit_columns(table: Path, edit: Callable[[dict[str, Any]], None], **protocol: Any) -> None:
    """Commit the schema with each column changed by `edit`, and another protocol if one is given."""
    metadata = [action["metaData"] for action in read_actions(table) if "metaData" in action][-1]
    schema = json.loads(metadata["schemaString"])
    for column in schema["fields"]:
        edit(column)
    actions: list[dict[str, Any]] = [{"metaData": {**metadata, "schemaString": json.dumps(schema)}}]
    commit(table, [*([{"protocol": protocol}] if protocol else []), *actions])


def _to_bitmap(rows: Sequence[int]) -> bytes:
    """Return the numbers as Delta's array of Roaring bitmaps, with one container for each 65536 rows."""
    containers: dict[int, list[int]] = {}
    for row in rows:
        containers.setdefault(row >> 16, []).append(row & 0xFFFF)
    head = struct.pack("<IQIII", 1681511377, 1, 0, 12346, len(containers))
    head += b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in containers.items())
    place = 8 + 8 * len(containers)
    # Numbers, or more than 4096 of them as bits.
    contents = [
        struct.pack(f"<{len(low)}H", *low)
        if len(low) <= 4096
        else sum(1 << number for number in low).to_bytes(8192, "little")
        for low in containers.values()
    ]
    for content in contents:
        head += struct.pack("<I", place)
        place += len(content)
    return head + b"".join(contents)


def _encode(data: bytes) -> str:
    return base64.b85encode(data + b"\0" * (-len(data) % 4)).decode().translate(_Z85)
