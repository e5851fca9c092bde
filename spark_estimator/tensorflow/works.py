"""The work of each op of ``native/tensorflow``: on arrays, eagerly, and on a node's memory when a graph runs.

A node's attributes describe all that it does, and TensorFlow knows the ops as soon as this package is imported: a
graph that was saved means the same in every process that loads it, with any number of ranks.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from typing import Any, NamedTuple

import numpy
import tensorflow as tf
from numpy.typing import NDArray

from spark_estimator import _native
from spark_estimator._native import DType, Op, ReduceOp, Status
from spark_estimator.collectives import arrays, context, ops
from spark_estimator.collectives.compression import int8
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import check_adasum
from spark_estimator.tensorflow.failures import find_status

Array = NDArray[Any]

ALLREDUCE = "SparkEstimatorAllreduce"
REDUCESCATTER = "SparkEstimatorReducescatter"
ALLGATHER = "SparkEstimatorAllgather"
BROADCAST = "SparkEstimatorBroadcast"
BROADCAST_VARIABLES = "SparkEstimatorBroadcastVariables"
ALLTOALL = "SparkEstimatorAlltoall"
AGREE = "SparkEstimatorAgree"
QUESTION = "SparkEstimatorQuestion"


class GraphCollective(NamedTuple):
    """All of a collective but its tensors and its name.

    Attributes:
        op: TensorFlow's name for it.
        process_set: whose ranks take part.
        reduce_op, prescale, postscale: allreduce and reducescatter: the reduction, and factors before and after it.
        root_rank: broadcasts: whose values all get; its number in the job.
        text: of a query: its kind; of an agreement: what the ranks compare (see `make_agreement`).
        residues: of an allreduce that is sent as int8: a key for each tensor, with commas between them; see
            ``collectives.compression.int8``. Else "".
    """

    op: str
    process_set: ProcessSet = global_process_set
    reduce_op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root_rank: int = 0
    text: str = ""
    residues: str = ""


def run_on_arrays(collective: GraphCollective, request: str | None, values: Sequence[Array]) -> list[Array]:
    """Run a collective on arrays, and return new ones; of an alltoall they include the splits. Collective.

    Raises ValueError: an argument is malformed, or this rank is not in the set; HorovodInternalError.
    """
    process_set = collective.process_set
    if collective.op in (ALLREDUCE, REDUCESCATTER):
        how: dict[str, Any] = {
            "prescale": collective.prescale,
            "postscale": collective.postscale,
            "process_set": process_set,
        }
        if collective.op == REDUCESCATTER:
            return arrays.grouped_reducescatter(list(values), collective.reduce_op, request, **how)
        how["residues"] = _list_keys(collective)
        return arrays.grouped_allreduce(list(values), collective.reduce_op, request, **how)
    if collective.op == ALLGATHER:
        return arrays.grouped_allgather(list(values), request, process_set=process_set)
    if collective.op == BROADCAST:
        [value] = values
        return [arrays.broadcast(value, collective.root_rank, request, process_set=process_set)]
    if collective.op == BROADCAST_VARIABLES:
        name = request or BROADCAST_VARIABLES
        _agree_on_forms(name, [(value.shape, value.dtype.name) for value in values], process_set)
        return broadcast_arrays(values, collective.root_rank, name, process_set)
    if collective.op == ALLTOALL:
        value, shares = values
        splits = [int(share) for share in shares.reshape(-1)] if shares.size else None
        rows, received = arrays.alltoall(value, splits, request, process_set=process_set)
        return [rows, numpy.array(received, numpy.int32)]
    if collective.op == QUESTION:
        return [numpy.array(_QUESTIONS[collective.text](process_set), numpy.int32)]
    if collective.op == AGREE:
        _agree_once(collective, request or AGREE)
        return []
    raise ValueError(f"{collective.op} is not an op of spark_estimator.")


def _list_keys(collective: GraphCollective) -> list[str]:
    """Return the keys of the residues."""
    return collective.residues.split(",") if collective.residues else []


def format_ranks(process_set: ProcessSet) -> str:
    """Return a set's ranks for a node's attribute; '' for the set of all ranks, which is another one in each job."""
    return "" if process_set.process_set_id == 0 else ",".join(map(str, process_set.ranks or ()))


def make_process_set(process_set_id: int, ranks: str = "") -> ProcessSet:
    """Make a process set for a node that is built from another's; `ranks` as of `format_ranks`, '': not known."""
    if process_set_id == 0:
        return global_process_set
    stand_in = ProcessSet([int(rank) for rank in ranks.split(",") if rank])
    stand_in.process_set_id = process_set_id
    return stand_in


def _find_process_set(process_set_id: int, ranks: str) -> ProcessSet:
    """Return this job's process set of the same ranks, else, as in Horovod, of the same id. Raises ValueError."""
    if process_set_id and ranks:
        expected = [int(rank) for rank in ranks.split(",")]
        for number, members in context.get_process_set_ids_and_ranks().items():
            if number and members == expected:
                return context.find_process_set(number)
    return context.find_process_set(process_set_id)


def make_agreement(lines: Sequence[str], subject: str) -> str:
    """Make the text of an agreement: what the ranks are about to do, in words for people, and what that is about."""
    return json.dumps({"subject": subject, "lines": list(lines)})


@functools.cache
def register() -> None:
    """Make the ops known to TensorFlow: a graph that has them can be run. Raises NativeLibraryError."""
    from spark_estimator.errors import NativeLibraryError

    folder = tf.sysconfig.get_lib()
    header = tf.sysconfig.get_include() + "/tensorflow/core/framework/op_kernel.h"
    lacking = f"TensorFlow {tf.__version__} cannot run collectives in graphs; they work eagerly"
    try:
        with open(header) as text:
            # See native/tensorflow/nodes.cc, Compute: the engine copies this callback.
            if "typedef std::function<void()> DoneCallback;" not in text.read():
                raise NativeLibraryError(f"{lacking}: the callback of its asynchronous kernels is of another type.")
    except OSError as error:
        raise NativeLibraryError(f"{lacking}: {error}") from error
    path = f"{folder}/libtensorflow_framework.so.2"
    if _native.library().se_tensorflow_register(path.encode(), _work) != Status.OK:
        raise NativeLibraryError(f"{lacking}: {_native.get_last_error()}")


# --- Questions, join and agreements -----------------------------------------------------------------------------------

_QUESTIONS: dict[str, Callable[[ProcessSet], int]] = {
    "rank": lambda _: context.rank(),
    "local_rank": lambda _: context.local_rank(),
    "local_size": lambda _: context.local_size(),
    "size": lambda process_set: len(process_set.ranks),
    "included": lambda process_set: int(context.rank() in process_set.ranks),
    "rank in set": lambda process_set: context.engine(process_set).rank,
    "join": lambda _: ops.join(),
}

# Which agreements each membership has reached: (request, text).
_agreed: weakref.WeakKeyDictionary[Engine, set[tuple[str, str]]] = weakref.WeakKeyDictionary()
_agreeing = threading.Lock()


def _agree_once(collective: GraphCollective, request: str) -> None:
    engine = context.engine(collective.process_set)
    with _agreeing:
        reached = _agreed.setdefault(engine, set())
    if (request, collective.text) in reached:
        return
    statement = json.loads(collective.text)
    check_identical(statement["lines"], name=request, subject=statement["subject"], process_set=collective.process_set)
    reached.add((request, collective.text))


# --- Variables --------------------------------------------------------------------------------------------------------


def broadcast_arrays(values: Sequence[Array], root: int, name: str, process_set: ProcessSet | None) -> list[Array]:
    """Return new copies of the root's arrays, of any numeric type, on every rank, sent at once under `name`."""
    copies = [numpy.array(value, order="C", copy=True) for value in values]
    buffers = [(copy.ctypes.data, copy.nbytes) for copy in copies]
    _broadcast_memory(buffers, root, name, process_set, keep=copies)
    return copies


def _agree_on_forms(name: str, forms: Sequence[tuple[tuple[int, ...], str]], process_set: ProcessSet) -> None:
    """Compare shapes and types: a name may be shared by several variables, and some have a number of the process."""
    lines = [f"variable {number}: shape {shape}, {dtype}" for number, (shape, dtype) in enumerate(forms)]
    check_identical(lines, name=f"{name}.forms", subject="the variables to broadcast", process_set=process_set)


def _broadcast_memory(
    buffers: Sequence[tuple[int, int]], root: int, name: str, process_set: ProcessSet | None, keep: object
) -> None:
    """Overwrite memory, given by address and number of bytes, with the root's."""
    handles = []
    for number, (address, count) in enumerate(buffers):
        start = address if count else 0
        # Bytes are bytes: also those of types that the engine cannot compute with.
        tensor = ops.Tensor(start, start, DType.UINT8, (count,))
        handles.append(
            ops.submit(Op.BROADCAST, f"{name}.{number}", [tensor], root_rank=root, process_set=process_set, keep=keep)
        )
    for handle in handles:
        handle.wait()


# --- A node's run -----------------------------------------------------------------------------------------------------

_DTYPES = {getattr(tf, dtype.name.lower()).as_datatype_enum: dtype for dtype in DType}


@_native.TensorflowWork
def _work(pointer: Any, message: Any, capacity: int) -> int:
    """Run a node's collective, in a thread that may wait; the inputs stay where they are until it returns."""
    try:
        call = pointer.contents
        op, text = call.op.decode(), call.text.decode()
        collective = GraphCollective(
            op,
            _find_process_set(call.process_set, call.process_set_ranks.decode()),
            ReduceOp(call.reduce_op),
            call.prescale,
            call.postscale,
            call.root_rank,
            **{"residues" if op == ALLREDUCE else "text": text},
        )
        _run(call, collective, call.request.decode())
        call.completed = 1
    except BaseException as error:  # it must not leave this function: TensorFlow raises its own error
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[: capacity - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        return find_status(error)
    return Status.OK


def _run(call: Any, collective: GraphCollective, request: str) -> None:
    inputs = call.inputs[: call.num_inputs]
    shapes = [tuple(tensor.dims[: tensor.num_dims]) for tensor in inputs]
    if collective.op in (ALLREDUCE, BROADCAST):
        outputs = call.outputs[: call.num_outputs]
        check_adasum(collective.reduce_op, context.engine(collective.process_set).size, "allreduce")
        tensors = [
            ops.Tensor(tensor.data or 0, output or 0, _DTYPES[tensor.dtype], shape)
            for tensor, output, shape in zip(inputs, outputs, shapes, strict=True)
        ]
        keys = _list_keys(collective)
        ops.run(
            Op.ALLREDUCE if collective.op == ALLREDUCE else Op.BROADCAST,
            request,
            tensors,
            reduce_op=collective.reduce_op,
            prescale=collective.prescale,
            postscale=collective.postscale,
            root_rank=collective.root_rank,
            process_set=collective.process_set,
            residues=int8.find_residues(collective.process_set, keys, [tensor[2:] for tensor in tensors])
            if keys
            else (),
        )
    elif collective.op == BROADCAST_VARIABLES:
        buffers = []
        for tensor, output in zip(inputs, call.outputs[: call.num_outputs], strict=True):
            if tensor.bytes and tensor.data != output:
                ctypes.memmove(output, tensor.data, tensor.bytes)
            buffers.append((output or 0, tensor.bytes))
        forms = [
            (shape, numpy.dtype(tf.as_dtype(tensor.dtype).as_numpy_dtype).name)
            for shape, tensor in zip(shapes, inputs, strict=True)
        ]
        _agree_on_forms(request, forms, collective.process_set)
        _broadcast_memory(buffers, collective.root_rank, request, collective.process_set, keep=None)
    else:
        values = [_to_array(tensor, shape) for tensor, shape in zip(inputs, shapes, strict=True)]
        for number, result in enumerate(run_on_arrays(collective, request, values)):
            _put(call, number, result)


def _to_array(tensor: Any, shape: tuple[int, ...]) -> Array:
    """Return an input's memory as an array."""
    dtype = tf.as_dtype(tensor.dtype).as_numpy_dtype
    if not tensor.bytes:
        return numpy.empty(shape, dtype)
    return numpy.frombuffer((ctypes.c_ubyte * tensor.bytes).from_address(tensor.data), dtype).reshape(shape)


def _put(call: Any, number: int, result: Array) -> None:
    """Make an output of the node, and copies a result there."""
    dims = (c_int64 * max(1, result.ndim))(*result.shape)
    target = c_void_p()
    if call.allocate(call.context, number, result.ndim, dims, ctypes.byref(target)) != Status.OK:
        raise MemoryError(f"TensorFlow cannot allocate a result of shape {result.shape} and type {result.dtype}.")
    if math.prod(result.shape):
        ctypes.memmove(target, numpy.ascontiguousarray(result).ctypes.data, result.nbytes)
