"""`get_available_devices`: Horovod's function that returns a rank's own GPUs."""

from __future__ import annotations

import os


def get_available_devices() -> list[str]:
    """Return the GPUs that this rank has, as CUDA_VISIBLE_DEVICES names them; none outside of a job."""
    if "HOROVOD_RANK" not in os.environ:
        return []
    return [device.strip() for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
