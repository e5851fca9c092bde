"""`profile`: runs torch.profiler on some ranks of a job for some steps, and brings the traces to the driver.

A step is a call of an optimizer's ``step()`` in its process, counted from 1. While the profiler runs, the spans of
``observe.spans`` are in the trace, too. Under ``nsys profile`` they, and PyTorch's own, become NVTX ranges instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from spark_estimator.collectives import context
from spark_estimator.env import JOB_VARIABLE, PROCESS_VARIABLE
from spark_estimator.log import get_logger
from spark_estimator.observe import spans
from spark_estimator.observe.driver_log import announce, log_to_driver
from spark_estimator.observe.profiling import FOLDER_VARIABLE, PROFILE_VARIABLE, ProfileRequest, make_trace_path
from spark_estimator.security import file_modes

_log = get_logger(__name__)


class profile(contextlib.AbstractContextManager["profile"]):  # it is used like torch.profiler.profile
    """Record what ranks do in some steps: around a job at the driver, or around the training's loop in a rank.

    At the driver, all jobs that start within it are profiled: of `HorovodRunner`, `run`, `TorchDistributor`, and of
    estimators on PyTorch, each job's traces over those of the one before. They are written there, into `folder`, when
    the job has ended: ``profile-rank0-steps10-13.json.gz``, for https://ui.perfetto.dev.

    Args:
        rank: which rank, or several of them.
        steps: the first and the last one, counted from 1 by calls of any optimizer's ``step()``; the first is 2 or
            later.
        folder: of the driver; made if it does not exist. In a rank it counts only where no launcher of this package
            has started that.

    Raises:
        TypeError, ValueError: an argument can't be used.
        PreflightError: by the job: it has fewer ranks.
    """

    def __init__(
        self, rank: int | Sequence[int] = 0, steps: tuple[int, int] = (10, 13), folder: str | os.PathLike[str] = "."
    ) -> None:
        self._request = ProfileRequest.make(rank, steps)
        self._folder = os.path.abspath(folder)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> profile:
        if JOB_VARIABLE in os.environ or context.is_initialized():
            self._undo.callback(_Recorder(self._request, self._folder).close)
        else:
            file_modes.make_folders(self._folder)
            variables = {PROFILE_VARIABLE: str(self._request), FOLDER_VARIABLE: self._folder}
            _publish(variables)
            self._undo.callback(_withdraw, variables)
            self._undo.callback(self._report_none, self._list_traces())
        return self

    def __repr__(self) -> str:
        return f"profile({str(self._request)!r}, folder={self._folder!r})"

    def write_to(self, folder: str) -> profile:
        """Return the same with another folder."""
        request = self._request
        return profile(request.ranks, (request.first, request.last), folder)

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _list_traces(self) -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in Path(self._folder).glob("profile-rank*.json.gz")}

    def _report_none(self, before: dict[Path, int]) -> None:
        if self._list_traces() == before:
            announce(
                f"no trace of {self._request.words} has arrived in {self._folder}. Steps are calls of PyTorch's "
                "optimizers in processes that import spark_estimator.torch; for Keras with TensorFlow use "
                "keras.callbacks.TensorBoard(profile_batch=(10, 13))."
            )


_lock = threading.Lock()
# The variables of each `profile` that is in force at this driver, and what they were before the first of them.
_published: list[dict[str, str]] = []
_before: dict[str, str | None] = {}


def _publish(variables: dict[str, str]) -> None:
    """Set variables for the jobs that start from now on."""
    with _lock:
        if not _published:
            _before.update({name: os.environ.get(name) for name in variables})
        _published.append(variables)
        os.environ.update(variables)


def _withdraw(variables: dict[str, str]) -> None:
    """Set them as the others have them that are in force, which threads end in any order; or as they were."""
    with _lock:
        _published[:] = [each for each in _published if each is not variables]
        for name, value in (_published[-1] if _published else _before).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Recorder:
    """Counts this process's steps, and records those that are asked for, if it is a rank that is."""

    def __init__(self, request: ProfileRequest, folder: str) -> None:
        self._request = request
        self._folder = folder
        self._step = 0
        self._rank: int | None = None  # as of the first step: at the end the job may be left already
        self._profiler: torch.profiler.profile | None = None
        self._recording: contextlib.ExitStack | None = None
        self._has_ended = False
        self._hook: Any = register_optimizer_step_post_hook(self._end_step)
        atexit.register(self.close)

    def close(self) -> None:
        """End the recording early, where it still runs; report steps that did not come. Idempotent."""
        atexit.unregister(self.close)
        self._hook.remove()
        if self._has_ended:
            return
        rank = self._find_rank()
        if rank in self._request.ranks:
            place = "before" if self._recording is None else "within"
            log_to_driver(
                f"spark_estimator: rank {rank}: the job ended after step {self._step}, {place} the profiled "
                f"{self._request.words}."
            )
        self._finish()

    def _end_step(self, *_: Any) -> None:
        """Count a step: called at the end of any optimizer's."""
        if self._has_ended:
            return
        self._step += 1
        if self._step == self._request.first - 1 and self._find_rank() in self._request.ranks:
            self._begin()
        elif self._step == self._request.last:
            self._finish()
        elif self._step == 1:
            self._find_rank()

    def _find_rank(self) -> int:
        if context.is_initialized():
            self._rank = context.rank()
        return int(os.environ.get("HOROVOD_RANK", "0")) if self._rank is None else self._rank

    def _begin(self) -> None:
        # PyTorch has one in a thread; a second one ends the process.
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            words = f"{self._request.words} are not profiled, as another profiler runs."
            log_to_driver(f"spark_estimator: rank {self._find_rank()}: {words}")
            self._finish()
            return
        self._recording = contextlib.ExitStack()
        if "NSYS_PROFILING_SESSION_ID" in os.environ and torch.cuda.is_available():
            self._recording.enter_context(torch.cuda.profiler.profile())  # for --capture-range=cudaProfilerApi
            self._recording.enter_context(torch.autograd.profiler.emit_nvtx())
        else:
            self._profiler = self._recording.enter_context(torch.profiler.profile())  # of all devices that there are
            self._profiler.add_metadata("spark_estimator", f"rank {self._find_rank()} on {socket.gethostname()}")
        spans.set_recorder(torch.profiler.record_function)
        self._recording.callback(spans.set_recorder, None)

    def _finish(self) -> None:
        """End counting, and the recording, if there is one.

        The hook stays until `close`: PyTorch calls one after the other, and this may be within such a call.
        """
        self._has_ended = True
        recording, self._recording = self._recording, None
        if recording is None:
            return
        recording.close()
        if self._profiler is not None:
            self._write(self._profiler)
        self._profiler = None

    def _write(self, profiler: torch.profiler.profile) -> None:
        """Write the trace where the supervisor finds it, or into the folder; an error must not end a training."""
        request = self._request
        name = f"profile-rank{self._find_rank()}-steps{request.first}-{request.last}.json.gz"
        mark = os.environ.get(PROCESS_VARIABLE, "").rpartition("/")[2]
        path = make_trace_path(os.environ, mark, name) if mark else Path(self._folder) / name
        try:
            with open(path, "wb", opener=file_modes.opener):
                pass
            profiler.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            _log.error("rank %d: no trace of %s is written: %s", self._find_rank(), request.words, error)
            return
        if not mark:
            log_to_driver(f"spark_estimator: wrote {path} on {socket.gethostname()}")


@functools.cache  # once in a process, also where that joins several rounds
def start_recorder() -> None:
    """Begin to count steps, if this process's launcher asks for it. Raises ValueError: in other words than its own."""
    if JOB_VARIABLE in os.environ and (text := os.environ.get(PROFILE_VARIABLE, "").strip()):
        _Recorder(ProfileRequest.parse(text), os.environ.get(FOLDER_VARIABLE, "."))
