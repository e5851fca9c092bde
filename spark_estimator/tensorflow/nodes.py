"""Runs collectives eagerly, or as nodes of a graph that take none of TensorFlow's threads while they wait.

TensorFlow runs the nodes of a graph in any order, on a few threads. A node that waits on one of these for other ranks
keeps it from the nodes for which these ranks wait: two ranks with one thread each, in opposite order, wait for ever.
So a collective is the only element of a data set, made by a function that waits: TensorFlow has a thread of its own
for each node that takes an element out of a data set, and it goes on with other nodes meanwhile.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy
import tensorflow as tf
from numpy.typing import NDArray

from spark_estimator._native import DType
from spark_estimator.collectives.reductions import request_name, where
from spark_estimator.log import logger

_log = logger(__name__)

Array = NDArray[Any]

#: Does a collective: gets the name of the request (None: by order) and arrays, gives arrays.
Work = Callable[..., Sequence[Array]]

_SENDABLE = frozenset(dtype.name.lower() for dtype in DType)

# How many collectives without a name each traced function's graph has, by kind.
_unnamed: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


# AutoGraph is for what the user writes: it would convert this and all that it calls, and warn of what it cannot.
@tf.autograph.experimental.do_not_convert
def perform(
    kind: str,
    name: str | None,
    work: Work,
    tensors: Sequence[Any],
    results: Sequence[Any],
    *,
    ignore_name_scope: bool = False,
    compiled: Callable[[str], list[Any] | None] | None = None,
) -> list[Any]:
    """Runs a collective now, or puts it into the graph that is being built.

    Args:
        kind: of the user's call: names of different kinds are different names.
        name: by which ranks' calls meet. None: eagerly by the order of calls, in a graph by the function that is
            traced (its name and line) and the order in which they were put there. Functions that are made by the same
            lines and call one another have to give names.
        work: does it.
        tensors: whose values `work` gets.
        results: a ``tf.TensorSpec`` for each array that `work` gives.
        ignore_name_scope: whether `name` is the whole name, also in a name scope of a graph.
        compiled: makes a node of its own for the request of this name, or gives None where it cannot.

    Returns:
        A tensor for each of `results`.

    Raises:
        TypeError: the name is no string.
        ValueError: the graph is to be compiled by XLA.
    """
    if name is not None:
        request_name(kind, name)  # which checks it
    _tell_of_copies(tensors)
    if tf.executing_eagerly():
        request = None if name is None else f"{kind}.{name}"
        # One without dimensions gives a number. Others give their own memory, which is only read.
        arrays = work(request, *(numpy.asarray(tensor.__array__()) for tensor in tensors))
        return [tf.convert_to_tensor(array) for array in arrays]
    graph = tf.compat.v1.get_default_graph()
    if _is_for_xla(graph):
        raise ValueError(
            f"{where(kind)}: a collective cannot be part of what XLA compiles. Build the function with "
            "jit_compile=False, as in model.compile(jit_compile=False), or call the collective outside of it."
        )
    scope = "" if ignore_name_scope else graph.get_name_scope()
    if name is None:
        request = _unnamed_request(kind, graph)
    else:
        request = f"{kind}.{scope}/{name}" if scope else f"{kind}.{name}"
    # A place in host memory, whatever device the user has chosen for what is around it.
    with tf.device("/cpu:0"), tf.name_scope("Horovod" + "".join(part.title() for part in kind.split("_"))):
        outputs = None if compiled is None else compiled(request)
        if outputs is not None:
            _let_run(graph, outputs[0].op)
            return outputs
        return _node(request, work, tensors, results, graph)


def _tell_of_copies(tensors: Sequence[Any]) -> None:
    """Says, once, that tensors on GPUs are copied: TensorFlow lets nobody else wait on its streams."""
    global _copies_told
    if _copies_told:
        return
    if not tf.config.get_visible_devices("GPU"):
        _copies_told = True  # there is nothing to tell, and never will be
    # Of what is in a graph nobody knows yet where it will lie.
    elif not tf.executing_eagerly() or any("GPU" in tensor.device for tensor in tensors):
        _copies_told = True
        _log.warning("TensorFlow's tensors on GPUs are copied through host memory: only PyTorch's travel from the GPU.")


_copies_told = False


def checked_tensor(tensor: Any, kind: str, *, rows: bool = False) -> Any:
    """`tensor` as a ``tf.Tensor`` that can be sent. Variables, arrays and numbers become one.

    Args:
        tensor: as the caller got it.
        kind: of the operation that it is for.
        rows: whether it must have a first dimension.

    Raises:
        ValueError: it is of another element type, or has no dimension.
    """
    converted = tf.convert_to_tensor(tensor)
    if converted.dtype.name not in _SENDABLE:
        raise ValueError(
            f"{where(kind)}: tensors of type {converted.dtype.name} cannot be sent; these can: "
            f"{', '.join(sorted(_SENDABLE))}."
        )
    if rows and converted.shape.rank == 0:
        raise ValueError(
            f"{where(kind)}: the rows of a tensor are moved, along dimension 0, and a 0-dimensional tensor has none: "
            "use tf.expand_dims."
        )
    return converted


def group(tensors: Any, kind: str) -> list[Any]:
    """The members of a group. Raises ValueError when there are none, or they are no list."""
    if not isinstance(tensors, (list, tuple)):
        raise ValueError(f"{where(kind)}: a list of tensors is needed, not a {type(tensors).__name__}.")
    if not tensors:
        raise ValueError(f"{where(kind)}: at least one tensor is needed, and the list is empty.")
    return list(tensors)


def spec_of(tensor: Any, *, rows: bool = False) -> Any:
    """The form of a result: that of `tensor`; with `rows` but for the number of its rows."""
    shape = tensor.shape
    if rows and shape.rank is not None:
        shape = tf.TensorShape([None, *shape[1:]])
    return tf.TensorSpec(shape, tensor.dtype)


def _is_for_xla(graph: Any) -> bool:
    """Whether a graph is built to be compiled. XLA itself would only say that it knows none of a collective's nodes."""
    context = graph._get_control_flow_context()
    if context is not None and context.IsXLAContext():
        return True
    return any(getattr(function, "_jit_compile", None) is True for function, _ in _traced())


def _traced() -> Iterator[tuple[Any, Any]]:
    """The tf.functions that are being traced, the innermost first, each with its graph.

    They tell nobody but themselves; but as they are being traced, they are among our callers.
    """
    graph = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "func_graph_from_py_func":  # also of the branches and bodies inside of it
            graph = frame.f_locals.get("func_graph", graph)
        if frame.f_globals.get("__name__", "").endswith(".polymorphic_function") and graph is not None:
            function = frame.f_locals.get("self")
            if hasattr(function, "_python_function"):
                yield function, graph
                graph = None
        frame = frame.f_back


def _unnamed_request(kind: str, graph: Any) -> str:
    """The name of a collective that the user gave none: the same on ranks that trace the same functions.

    A function that calls another one may run its own collectives beside the other's: their names differ by the
    function. How often, in which order and inside of what a rank has traced them makes no difference.
    """
    function, root = next(_traced(), (None, None))
    if root is None:
        root = graph
        # Branches and bodies have graphs of their own: they count in that which they belong to.
        while getattr(root, "outer_graph", None) is not None and root.outer_graph.building_function:
            root = root.outer_graph
    counts = _unnamed.setdefault(root, Counter())
    counts[kind] += 1
    return ".".join([kind, "node", *([] if function is None else [_place_of(function)]), str(counts[kind] - 1)])


def _place_of(function: Any) -> str:
    """The name and the line of what a tf.function was made of, as they are on every rank."""
    python = inspect.unwrap(function._python_function)
    while isinstance(python, functools.partial):
        python = inspect.unwrap(python.func)
    code = getattr(python, "__code__", None)
    name = getattr(python, "__qualname__", type(python).__qualname__)
    return re.sub(r"[^\w.]", "", f"{name}.{getattr(code, 'co_firstlineno', 0)}")


def _let_run(graph: Any, *nodes: Any) -> None:
    """tf.function has nodes with effects run one after another, in the order of their tracing: not these."""
    order = getattr(graph, "experimental_acd_manager", None)
    if order is not None:
        for node in nodes:
            order.run_independently(node)


def _node(request: str, work: Work, tensors: Sequence[Any], results: Sequence[Any], graph: Any) -> list[Any]:
    """The only element of a data set, made by a function that does the work."""
    dtypes = [result.dtype for result in results]

    def body(*inputs: Any) -> Any:
        return tf.numpy_function(lambda *arrays: list(work(request, *arrays)), inputs, dtypes, stateful=False)

    function = tf.function(body, autograph=False).get_concrete_function(
        *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
    )
    given = tf.raw_ops.TensorDataset(components=tensors, output_shapes=[tensor.shape for tensor in tensors])
    form = {"output_types": dtypes, "output_shapes": [result.shape for result in results]}
    made = tf.raw_ops.MapDataset(
        input_dataset=given, other_arguments=[], f=function, use_inter_op_parallelism=False, **form
    )
    outputs: list[Any] = tf.raw_ops.DatasetToSingleElement(dataset=made, **form)
    _let_run(graph, given.op, outputs[0].op)
    return outputs
