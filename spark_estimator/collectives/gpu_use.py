"""The GPU that a rank uses in one group of ranks, and tensors that it may still use after a failure."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from spark_estimator.errors import DuplicateNameError, HorovodInternalError, MismatchError
from spark_estimator.log import get_logger

if TYPE_CHECKING:
    from spark_estimator.collectives.engine import Engine

_MOST_HELD = 1000
_log = get_logger(__name__)


class GpuUse:
    """A rank's GPU in one group.

    Args:
        chooses_path: whether the user has left it to this package how GPU tensors are sent.

    Attributes:
        device: index, in this process, of the GPU that holds the rank's tensors; None: no GPU tensor has been seen.
    """

    def __init__(self, *, chooses_path: bool) -> None:
        self.device: int | None = None
        self._chooses_path = chooses_path
        self._is_path_logged = False
        # Limited, so that repeated requests to a broken engine hold no more memory.
        self._failed: deque[object] = deque(maxlen=_MOST_HELD)

    def claim(self, device: int) -> bool:
        """Return whether a GPU is the one that this rank uses in the group: the first one that is passed here."""
        if self.device is None:
            self.device = device
        return self.device == device

    def hold(self, keep: object, error: BaseException) -> None:
        """Keep the owners of a failed request's memory as long as the engine: the GPU may still use it.

        A request that was refused, or that the ranks did not agree on, has not reached the GPU.
        """
        failed = isinstance(error, (HorovodInternalError, MemoryError))
        if failed and not isinstance(error, (MismatchError, DuplicateNameError)):
            self._failed.append(keep)

    def log_path(self, engine: Engine) -> None:
        """Log, once, how GPU tensors are sent and why; as a warning where the user did not ask for this."""
        if self._is_path_logged:
            return
        self._is_path_logged = True
        with suppress(HorovodInternalError, ValueError):
            path = engine.describe("gpu").rstrip()
            level = logging.WARNING if "host memory" in path and self._chooses_path else logging.INFO
            where = f"process set {engine.process_set}: " if engine.process_set else ""
            _log.log(level if engine.rank == 0 else logging.DEBUG, "%s%s", where, path)
