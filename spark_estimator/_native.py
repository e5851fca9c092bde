"""Declares the engine's C ABI (``native/include/spark_estimator/engine.h``) to Python, and nothing else."""

from __future__ import annotations

import ctypes
import enum
import functools
import platform
import socket
from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_void_p,
)
from pathlib import Path

from spark_estimator.errors import (
    DuplicateNameError,
    HorovodInternalError,
    MismatchError,
    NativeLibraryError,
    PeerLostError,
    ShutDownError,
)

ABI_VERSION = 14
MAX_DATA = 8  # data connections between two ranks
MOST_NEIGHBOURS = 62  # of a rank in an overlay
LIBRARY_NAME = "libspark_estimator_engine.so"


class Status(enum.IntEnum):
    """``se_status``: what became of a call or of a request."""

    OK = 0
    IN_PROGRESS = 1
    INVALID_ARGUMENT = 2
    DUPLICATE_NAME = 3
    MISMATCH = 4
    PEER_LOST = 5
    SHUT_DOWN = 6
    TIMED_OUT = 7
    NO_MEMORY = 8
    SYSTEM_ERROR = 9
    INTERNAL = 10


class Op(enum.IntEnum):
    """``se_op``: the kinds of collective."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ALLTOALL = 4
    REDUCESCATTER = 5
    JOIN = 6


class ReduceOp(enum.IntEnum):
    """``se_reduce_op``, with the values of Horovod's public constants."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class DType(enum.IntEnum):
    """``se_dtype``: element types. ``BOOL`` is one byte, 0 or 1."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    BFLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    UINT16 = 10

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return _ITEMSIZES[self]


_ITEMSIZES = {
    DType.UINT8: 1,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.BOOL: 1,
    DType.UINT16: 2,
}


class Cipher(enum.IntEnum):
    """``se_cipher``: how encrypted connections are encrypted."""

    AES_128_GCM = 1
    CHACHA20_POLY1305 = 2


class MemoryKind(enum.IntEnum):
    """``se_place``: the device and the stream of a request's tensors."""

    HOST = 0
    GPU = 1


class GpuOperations(enum.IntEnum):
    """``se_gpu_operations``: how GPU tensors are sent."""

    AUTO = 0
    NCCL = 1
    STAGED = 2


class Encryption(Structure):
    """``se_encryption``: the cipher and the secrets of a connection; all zeros: it is not encrypted."""

    # c_uint8 and not c_char, whose arrays end at the first zero.
    _fields_ = [("cipher", c_int32), ("send", c_uint8 * 32), ("receive", c_uint8 * 32)]

    @classmethod
    def of(cls, cipher: Cipher, send: bytes, receive: bytes) -> Encryption:
        """Make the value for an engine."""
        return cls(cipher, (c_uint8 * 32)(*send), (c_uint8 * 32)(*receive))


class Peer(Structure):
    """``se_peer``: another rank: its numbers, its name and the descriptors of its connections."""

    _fields_ = [
        ("rank", c_int32),
        ("global_rank", c_int32),
        ("control_fd", c_int32),
        ("data_count", c_int32),
        ("data_fds", c_int32 * MAX_DATA),
        ("segment_fd", c_int32),
        ("name", c_char_p),
        ("control_encryption", Encryption),
        ("data_encryption", Encryption * MAX_DATA),
    ]

    @classmethod
    def of(
        cls,
        rank: int,
        global_rank: int,
        control_fd: int,
        data_fds: Sequence[int],
        segment_fd: int,
        name: str,
        control_encryption: Encryption | None = None,
        data_encryption: Sequence[Encryption] = (),
    ) -> Peer:
        """Make the value for an engine; connections without an `Encryption` are not encrypted."""
        fds = (c_int32 * MAX_DATA)(*data_fds)
        encryption = control_encryption or Encryption()
        of_data = (Encryption * MAX_DATA)(*data_encryption)
        return cls(rank, global_rank, control_fd, len(data_fds), fds, segment_fd, name.encode(), encryption, of_data)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return all descriptors that the engine takes over; -1 for a missing segment."""
        return (self.control_fd, *self.data_fds[: self.data_count], self.segment_fd)


class Config(Structure):
    """``se_config``: this rank and its settings."""

    _fields_ = [
        ("struct_bytes", c_uint32),
        ("rank", c_int32),
        ("size", c_int32),
        ("global_rank", c_int32),
        ("process_set", c_int32),
        ("own_segment_fd", c_int32),
        ("cache_capacity", c_int32),
        ("overlay", c_int32),
        ("overlap", c_int32),
        ("cores", c_int32),
        ("hierarchical", c_int32),
        ("affinity_core", c_int32),
        ("spin_microseconds", c_int32),
        ("fusion_threshold_bytes", c_int64),
        ("start_timeout_seconds", c_double),
        ("stall_warning_seconds", c_double),
        ("stall_shutdown_seconds", c_double),
        ("heartbeat_seconds", c_double),
        ("silence_seconds", c_double),
        ("name", c_char_p),
        ("gpu_operations", c_int32),
        ("ranks_on_host", c_int32),
        ("cuda_library", c_char_p),
        ("nccl_library", c_char_p),
        ("crypto_library", c_char_p),
    ]


class TensorStruct(Structure):
    """``se_tensor``: addresses, type and dimensions of one tensor of a request."""

    _fields_ = [
        ("input", c_void_p),
        ("output", c_void_p),
        ("output_bytes", c_int64),
        ("dtype", c_int32),
        ("num_dims", c_int32),
        ("dims", c_void_p),  # const int64_t*; an address, so that all tensors' dimensions can be in one array
        ("residue", c_void_p),
    ]


class Request(Structure):
    """``se_request``: one collective."""

    _fields_ = [
        ("struct_bytes", c_uint32),
        ("name", c_char_p),
        ("op", c_int32),
        ("reduce_op", c_int32),
        ("root_rank", c_int32),
        ("num_tensors", c_int32),
        ("tensors", POINTER(TensorStruct)),
        ("splits", POINTER(c_int64)),
        ("prescale", c_double),
        ("postscale", c_double),
        ("unnamed", c_int32),
        ("place", c_int32),
        ("device", c_int32),
        ("stream", c_void_p),
    ]


class Result(Structure):
    """``se_result``: what an allgather or alltoall made of one tensor, or a join."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("rows", POINTER(c_int64)),
        ("last_joined", c_int32),
        ("owned", c_int32),
        ("place", c_int32),
    ]


class TensorflowTensor(Structure):
    """``se_tensorflow_tensor``: an input of a node of TensorFlow's."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_int64),
        ("dtype", c_int32),
        ("num_dims", c_int32),
        ("dims", POINTER(c_int64)),
    ]


#: ``se_tensorflow_allocate``: makes an output whose shape is known.
TensorflowAllocate = CFUNCTYPE(c_int32, c_void_p, c_int32, c_int32, POINTER(c_int64), POINTER(c_void_p))


class TensorflowCall(Structure):
    """``se_tensorflow_call``: one run of a node of TensorFlow's."""

    _fields_ = [
        ("struct_bytes", c_uint32),
        ("op", c_char_p),
        ("request", c_char_p),
        ("text", c_char_p),
        ("reduce_op", c_int32),
        ("root_rank", c_int32),
        ("process_set", c_int32),
        ("process_set_ranks", c_char_p),
        ("prescale", c_double),
        ("postscale", c_double),
        ("num_inputs", c_int32),
        ("num_outputs", c_int32),
        ("inputs", POINTER(TensorflowTensor)),
        ("outputs", POINTER(c_void_p)),
        ("context", c_void_p),
        ("allocate", TensorflowAllocate),
        ("completed", c_int32),
    ]


#: ``se_tensorflow_work``: does the work of a node.
TensorflowWork = CFUNCTYPE(c_int32, POINTER(TensorflowCall), POINTER(c_char), c_int64)

#: ``SE_DEFER``: no rank needs the result before this rank's next wait.
DEFER = 1

# Addresses are c_void_p in what is called for each operation: a number is converted faster than a pointer object.
_SIGNATURES: dict[str, tuple[type | None, list[object]]] = {
    "se_abi_version": (c_int32, []),
    "se_last_error": (c_char_p, []),
    "se_build_info": (c_char_p, []),
    "se_cuda_probe": (c_int32, [c_char_p, POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)]),
    "se_cuda_peer_access": (c_int32, [c_char_p, c_int32, c_int32, POINTER(c_int32)]),
    "se_nccl_probe": (c_int32, [c_char_p, POINTER(c_int32)]),
    "se_dtype_bytes": (c_int64, [c_int32]),
    "se_rows_of": (c_int64, [c_int64, c_int32, c_int32]),
    "se_segment_create": (c_int32, [c_int32, POINTER(c_int32)]),
    "se_engine_create": (c_int32, [POINTER(Config), POINTER(Peer), POINTER(c_void_p)]),
    "se_submit": (c_int32, [c_void_p, POINTER(Request), POINTER(c_int64)]),
    "se_run": (c_int32, [c_void_p, POINTER(Request), c_double, POINTER(c_int64)]),
    "se_poll": (c_int32, [c_void_p, c_int64]),
    "se_wait": (c_int32, [c_void_p, c_int64, c_double]),
    "se_get_result": (c_int32, [c_void_p, c_int64, c_int32, POINTER(Result)]),
    "se_take_result_data": (c_int32, [c_void_p, c_int64, c_int32, POINTER(c_void_p)]),
    "se_free": (None, [c_void_p]),
    "se_await_on_stream": (c_int32, [c_void_p, c_int64, c_void_p]),
    "se_copy_result": (c_int32, [c_void_p, c_int64, c_int32, c_void_p, c_void_p]),
    "se_release": (None, [c_void_p, c_int64]),
    "se_plan_create": (c_int32, [c_void_p, POINTER(Request), POINTER(c_void_p)]),
    "se_plan_submit": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_void_p]),
    "se_plan_run": (c_int32, [c_void_p, c_void_p, c_void_p, c_void_p, c_double, c_void_p]),
    "se_plan_destroy": (None, [c_void_p]),
    "se_shared_allocate": (c_int32, [c_void_p, c_int64, POINTER(c_void_p)]),
    "se_shared_free": (None, [c_void_p, c_void_p]),
    "se_counter": (c_int64, [c_void_p, c_char_p]),
    "se_counter_names": (c_char_p, []),
    "se_describe": (c_int32, [c_void_p, c_char_p, c_void_p, c_int64, POINTER(c_int64)]),
    "se_timeline_start": (c_int32, [c_void_p, c_char_p, c_int32]),
    "se_timeline_stop": (c_int32, [c_void_p]),
    "se_neighbours": (c_int32, [c_int32, c_int32, POINTER(c_int32)]),
    "se_await_wanted_peer": (c_int32, [c_void_p, c_double, POINTER(c_int32)]),
    "se_connect_peer": (c_int32, [c_void_p, POINTER(Peer)]),
    "se_refuse_peer": (c_int32, [c_void_p, c_int32, c_char_p]),
    "se_order_ring": (c_int32, [c_void_p, POINTER(c_int32), c_int32]),
    "se_await_question": (c_int32, [c_void_p, c_double, POINTER(c_int64)]),
    "se_answer": (c_int32, [c_void_p, c_int64, c_char_p]),
    "se_engine_shutdown": (c_int32, [c_void_p]),
    "se_engine_destroy": (None, [c_void_p]),
    "se_engine_abandon_after_fork": (None, [c_void_p]),
    "se_tensorflow_register": (c_int32, [c_char_p, TensorflowWork]),
    "se_die_with_parent": (c_int32, [c_int32]),
    "se_set_exit_status": (None, [c_int32]),
    "se_exit": (None, []),
    "se_sealer_create": (c_int32, [c_char_p, c_int32, c_char_p, POINTER(c_void_p)]),
    "se_seal": (c_int32, [c_void_p, c_char_p, c_int64, c_char_p]),
    "se_sealer_destroy": (None, [c_void_p]),
    "se_opener_create": (c_int32, [c_char_p, c_int32, c_char_p, POINTER(c_void_p)]),
    "se_open": (c_int32, [c_void_p, c_char_p, c_int64, c_char_p, POINTER(c_int64), POINTER(c_int64)]),
    "se_opener_destroy": (None, [c_void_p]),
}


def library_path() -> Path:
    """Return the path of the engine's library: beside this module, in a wheel and in a checkout."""
    return Path(__file__).with_name(LIBRARY_NAME)


def require_engine(path: Path | None = None) -> None:
    """Refuse to start ranks on this machine where the engine's library is not installed. Raises NativeLibraryError."""
    path = path or library_path()
    if not path.exists():
        raise NativeLibraryError(
            f"No rank can run on {socket.gethostname()} ({platform.platform()}): the collective engine {path} does not "
            "exist. The wheel for every system (py3-none-any) drives jobs on Spark, and has no engine. On Linux with "
            "glibc, on x86_64 or aarch64, install the wheel of that platform, or run `make build` in a checkout. On "
            "others, let ranks run on a cluster: SparkSession.builder.remote(...), then HorovodRunner(np=2)."
        )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the engine's library, loaded and declared. Calls through it release the GIL.

    Raises:
        NativeLibraryError: it is missing, cannot be loaded here, or is of another ABI version.
    """
    return load(library_path())


def load(path: Path) -> ctypes.CDLL:
    """Load the engine's library from `path`; callers use `library`. Raises NativeLibraryError."""
    remedy = (
        "In a checkout run `make build`; otherwise install the wheel again: "
        "`pip install --force-reinstall spark_estimator-....whl`."
    )
    require_engine(path)
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise NativeLibraryError(f"The collective engine {path} cannot be used here: {error}. {remedy}") from error
    version = loaded.se_abi_version()
    if version != ABI_VERSION:
        raise NativeLibraryError(
            f"The collective engine {path} has ABI version {version}; this package needs {ABI_VERSION}. {remedy}"
        )
    return loaded


def get_last_error() -> str:
    """Return the sentence that belongs to the calling thread's last failed call."""
    text: bytes | None = library().se_last_error()
    return (text or b"").decode("utf-8", "replace")


def make_error(status: int, message: str, rank: int | None = None) -> Exception:
    """Make the exception of ``errors.py`` (or a built-in one) for `status`, with `message` as its text.

    Args:
        status: of the failed call.
        message: the engine's sentence.
        rank: this rank, added to errors of the caller's arguments; other messages name ranks themselves.
    """
    if rank is not None and status in (Status.INVALID_ARGUMENT, Status.DUPLICATE_NAME):
        message = f"on rank {rank}: {message}"
    kind: type[Exception] = {
        Status.INVALID_ARGUMENT: ValueError,
        Status.DUPLICATE_NAME: DuplicateNameError,
        Status.MISMATCH: MismatchError,
        Status.PEER_LOST: PeerLostError,
        Status.SHUT_DOWN: ShutDownError,
        # Of an engine that is created, or of a group of GPUs: a peer was not there.
        Status.TIMED_OUT: PeerLostError,
        Status.NO_MEMORY: MemoryError,
    }.get(Status(status) if status in Status.__members__.values() else Status.INTERNAL, HorovodInternalError)
    return kind(message or f"the engine gave status {status} without a message")


def check(status: int, rank: int | None = None) -> None:
    """Raise `make_error` of the status with the engine's message, unless `status` is OK or IN_PROGRESS."""
    if status not in (Status.OK, Status.IN_PROGRESS):
        raise make_error(status, get_last_error(), rank)
