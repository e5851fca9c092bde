"""The node of ``allreduce_op.cc``: compiled on first use where there is a compiler, and kept for later processes.

Without it graphs reduce as well, by way of two copies and of TensorFlow's data sets (``nodes``), with the same bits.
Ranks need not all have it.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from spark_estimator._native import ABI_VERSION, DType, Op, ReduceOp
from spark_estimator.collectives import context, ops
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.errors import NativeLibraryError
from spark_estimator.log import logger

_SOURCE = Path(__file__).with_name("allreduce_op.cc")
_COMPILE_SECONDS = 300
_log = logger(__name__)


class Allreduce(NamedTuple):
    """What one node does, but for its tensors.

    Attributes:
        name: of the request.
        op, prescale, postscale, process_set: as in `allreduce`.
        dtypes: of its tensors.
    """

    name: str
    op: ReduceOp
    prescale: float
    postscale: float
    process_set: ProcessSet
    dtypes: tuple[DType, ...]


_calls: dict[int, Allreduce] = {}
_numbers = itertools.count()
_lock = threading.Lock()
_library: Any = None
_refused: NativeLibraryError | None = None


def node(call: Allreduce, tensors: Sequence[Any]) -> list[Any] | None:
    """Puts a node into the graph that is being built, and gives its outputs; None where it cannot be compiled.

    Raises:
        NativeLibraryError: it cannot, and ``SPARK_ESTIMATOR_TENSORFLOW_OP=native`` asks for it.
    """
    choice = context.settings().tensorflow_op if context.is_initialized() else "auto"
    if choice == "python":
        return None
    try:
        library = loaded()
    except NativeLibraryError:
        if choice == "native":
            raise
        return None
    number = next(_numbers)
    _calls[number] = call  # for good: nobody tells when the last graph with this node is gone
    outputs: list[Any] = library.spark_estimator_allreduce(tensors=list(tensors), call=number)
    return outputs


def loaded() -> Any:
    """The functions that make nodes; compiles them if need be.

    Raises:
        NativeLibraryError: there is no compiler, or no folder to keep what it makes, or it fails; said once in the log.
    """
    global _library, _refused
    with _lock:
        if _library is None and _refused is None:
            try:
                path = _compiled()
                library = tf.load_op_library(str(path))
                ctypes.CDLL(str(path)).spark_estimator_set_work(_work)
                _library = library
            except (NativeLibraryError, OSError, tf.errors.OpError, subprocess.SubprocessError) as error:
                text = f"TensorFlow's graphs reduce by way of data sets, because their own node is not there: {error}"
                _refused = NativeLibraryError(text)
                _log.info("%s", text)
        if _library is None:
            raise _refused or NativeLibraryError("it is not there")
        return _library


def cache_folder() -> Path:
    """Where compiled nodes are kept: a folder of this user's alone.

    Raises:
        NativeLibraryError: there is none, or another user could write to it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base, "spark_estimator")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_own(folder)
        for parent in folder.resolve().parents:
            mode = parent.stat().st_mode
            # Who may rename our folder may put another in its place; a sticky one, as /tmp, lets nobody.
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise NativeLibraryError(f"everybody can write to {parent}: what is below it is not loaded.")
    except OSError as error:
        raise NativeLibraryError(f"{folder} cannot be used: {error}") from error
    return folder


def _check_own(path: Path) -> None:
    """Raises NativeLibraryError unless only this user can write to a file or folder."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise NativeLibraryError(f"{path} is a link, or another user could write to it: what it holds is not loaded.")


def _compiled() -> Path:
    """The library for this TensorFlow; made if it is not there yet."""
    compiler = shutil.which(os.environ.get("CXX", "") or "g++") or shutil.which("c++")
    source = _SOURCE.read_bytes()
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    facts = [tf.__version__, str(ABI_VERSION), *flags, *map(str, sys.version_info[:2]), os.uname().machine]
    digest = hashlib.sha256(b"\0".join([source, *(fact.encode() for fact in facts)])).hexdigest()[:16]
    folder = cache_folder()
    path = folder / f"tensorflow-{tf.__version__}-{digest}.so"
    # The ranks of a host come at the same time: one compiles, the others wait for it.
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            if compiler is None:
                raise NativeLibraryError("there is no C++ compiler (g++).")
            _log.info("compiling %s for TensorFlow %s, once", _SOURCE.name, tf.__version__)
            new = folder / f"{path.name}.{os.getpid()}"
            command = [compiler, "-shared", "-fPIC", "-O2", "-w", str(_SOURCE), "-o", str(new), *flags]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, stdin=subprocess.DEVNULL
                )
                if done.returncode != 0:
                    raise NativeLibraryError(f"{compiler} failed: {done.stderr[-500:]}")
                new.chmod(0o700)
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        _check_own(path)
    return path


@ctypes.CFUNCTYPE(
    c_int32,
    c_int64,
    c_int32,
    POINTER(c_void_p),
    POINTER(c_void_p),
    POINTER(c_int64),
    POINTER(c_int32),
    POINTER(c_char),
    c_int64,
)
def _work(call: int, count: int, inputs: Any, outputs: Any, dims: Any, ranks: Any, message: Any, capacity: int) -> int:
    """Called by a node, in a thread that may wait; tensors stay where they are until it returns."""
    try:
        how = _calls[call]
        shapes, start = [], 0
        for number in range(count):
            shapes.append(tuple(dims[start : start + ranks[number]]))
            start += ranks[number]
        ops.run(
            Op.ALLREDUCE,
            how.name,
            [
                ops.Tensor(inputs[number] or 0, outputs[number] or 0, dtype, shape)
                for number, (dtype, shape) in enumerate(zip(how.dtypes, shapes, strict=True))
            ],
            reduce_op=how.op,
            prescale=how.prescale,
            postscale=how.postscale,
            process_set=how.process_set,
        )
    except BaseException as error:  # it must not leave this function: TensorFlow hears of it by the status
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[: capacity - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        return 2 if isinstance(error, ValueError) else 1
    return 0
