"""``horovod.runner.common.util.env``: the rank and the size that a launcher has put into the environment."""

from __future__ import annotations

import os


def get_env_rank_and_size() -> tuple[int, int]:
    """Return (rank, size) by the variables of this package's launchers; (0, 1) in a process without a launcher."""
    rank, size = os.environ.get("HOROVOD_RANK"), os.environ.get("HOROVOD_SIZE")
    return (0, 1) if rank is None or size is None else (int(rank), int(size))
