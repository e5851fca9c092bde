"""The content of a slot beside the tensors: the other values, and the writer's instructions."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch

from spark_estimator.checkpoint.slot_memory import SlotMemory
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint.image import save_to_bytes
from spark_estimator.extensions.checkpoint.layout import Layout
from spark_estimator.extensions.checkpoint.state import Path, StateEntry

Packed = tuple[str, Path, bytes]
_SIMPLE = (int, float, bool, str, type(None))


class Objects:
    """Makes bytes of values that are no tensors; those that stay the same are made once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, bytes]] = {}
        self._checked: set[tuple[str, type]] = set()

    def pack(self, entries: Sequence[StateEntry], rank_state: Mapping[str, Any], rank: int) -> list[Packed]:
        """Return the content of this rank's part: its own values, and on rank 0 those of all.

        Raises:
            DataError: one could not be read back without running code.
        """
        values = [
            (entry.key, entry.path, entry.value) for entry in entries if not isinstance(entry.value, torch.Tensor)
        ]
        result = [(key, path, self._pack_value(key, value)) for key, path, value in values] if rank == 0 else []
        key = f"ranks.{rank}"
        return [*result, (key, ("ranks", str(rank)), self._pack_value(key, rank_state))]

    def _pack_value(self, key: str, value: Any) -> bytes:
        cached = self._known.get(key)
        if cached is not None and type(cached[0]) is type(value) and cached[0] == value:
            return cached[1]
        content = save_to_bytes(value)
        if (key, type(value)) not in self._checked:
            try:
                torch.load(io.BytesIO(content), weights_only=True)
            except Exception as error:  # of pickle, or of the objects themselves
                raise DataError(
                    f"the state's {key} is a {type(value).__qualname__} that cannot be read back without running code "
                    f"({str(error).splitlines()[0]}): have its state_dict() return plain values and tensors."
                ) from error
            self._checked.add((key, type(value)))
        if isinstance(value, _SIMPLE):
            self._known[key] = value, content
        return content


def write_job(
    slot: SlotMemory,
    layout: Layout,
    objects: Sequence[Packed],
    path: str,
    rank: int,
    ranks: int,
    keep: tuple[int, timedelta | None],
) -> tuple[int, int]:
    """Write values and description into a slot behind the layout's.

    Args:
        path: of the checkpoint's folder.

    Returns:
        Where the description is: first byte, and number of bytes.
    """
    offset, placed = layout.objects_offset, []
    for key, where, content in objects:
        slot.put(offset, content)
        placed.append((key, where, offset, len(content)))
        offset += len(content)
    job = {
        "path": path,
        "rank": rank,
        "size": ranks,
        "end": layout.end,
        "table": (layout.end, len(layout.table)),
        "objects": placed,
        "keep": keep[0],
        "keep_every": None if keep[1] is None else keep[1].total_seconds(),
    }
    text = json.dumps(job).encode()
    slot.put(offset, text)
    return offset, len(text)
