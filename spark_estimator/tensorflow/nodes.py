"""Runs collectives eagerly, or puts them into a graph as nodes that keep none of TensorFlow's threads while they wait.

TensorFlow runs the nodes of a graph in any order, on a few threads. A node that waits on one of these for other ranks
keeps it from the nodes for which these ranks wait: two ranks with one thread each, in opposite order, wait for ever.
So the nodes are custom ops, which wait in threads of the engine (``native/tensorflow``, `works`).
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy
import tensorflow as tf
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_library
from tensorflow.python.ops import control_flow_v2_func_graphs

from spark_estimator._native import DType
from spark_estimator.collectives.process_set import HOW_TO_REGISTER
from spark_estimator.collectives.reductions import describe_call, make_request_name
from spark_estimator.log import get_logger
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.failures import raise_as_tensorflow, to_tensorflow_error
from spark_estimator.tensorflow.works import GraphCollective

_log = get_logger(__name__)

# Graphs of branches and bodies, which are built where they run.
_BRANCHES = (
    control_flow_v2_func_graphs.CondBranchFuncGraph,
    control_flow_v2_func_graphs.WhileBodyFuncGraph,
    control_flow_v2_func_graphs.WhileCondFuncGraph,
)
_SENDABLE = frozenset(dtype.name.lower() for dtype in DType)

# How many collectives without a name each traced function's graph has, by kind.
_unnamed: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()
# How many requests of each graph have a name that is derived from another's.
_derived: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


class Naming(NamedTuple):
    """The name of a collective's request, which matches the ranks' calls.

    Attributes:
        kind: of the user's call: names of different kinds are different names.
        name: the user's. None: eagerly by the order of calls; in a function by the function that is traced (its name
            and line) and the order in which its collectives were put there; in a graph of TensorFlow 1 by the node's
            name. Functions that are made by the same lines and call each other have to pass names. Copies of a node (of
            an imported graph, of a function that is called in another one) also have what TensorFlow puts before its
            name.
        whole: `name` is the whole name, also in a name scope of a graph.
        request: in a graph: all of the request's name; `name` and `whole` are then ignored.
        by_node_name: in a graph, with `request`: the node's name is added to it.
    """

    kind: str
    name: str | None = None
    whole: bool = False
    request: str | None = None
    by_node_name: bool = False


# AutoGraph is for what the user writes: it would convert this and all that it calls, and warn of what it cannot.
@tf.autograph.experimental.do_not_convert
def perform(collective: GraphCollective, naming: Naming, tensors: Sequence[Any]) -> list[Any]:
    """Run a collective now, or put it into the graph that is being built. Return its results, or a graph's operation.

    Raises:
        TypeError: the name is no string.
        ValueError: the graph is to be compiled by XLA, or the process set is not registered.
        NativeLibraryError: this TensorFlow cannot have such nodes.
    """
    if naming.name is not None:
        make_request_name(naming.kind, naming.name)  # which checks it
    _warn_about_copies(tensors)
    if tf.executing_eagerly():
        request = None if naming.name is None else f"{naming.kind}.{naming.name}"
        # One without dimensions returns a number. Others give their own memory, which is only read.
        values = [numpy.asarray(tensor.__array__()) for tensor in tensors]
        with raise_as_tensorflow():
            return [tf.convert_to_tensor(array) for array in works.run_on_arrays(collective, request, values)]
    graph = tf.compat.v1.get_default_graph()
    if _is_for_xla(graph):
        raise ValueError(
            f"{describe_call(naming.kind)}: XLA cannot compile a collective. Build the function with "
            "jit_compile=False, as in model.compile(jit_compile=False), or call the collective outside the function."
        )
    works.register()
    if collective.process_set.process_set_id is None:
        raise ValueError(f"{describe_call(naming.kind)}: {collective.process_set} is not registered. {HOW_TO_REGISTER}")
    request, by_node_name = _make_request_name(naming, graph)
    # On the host's device, not on the one that the user has chosen for the surrounding code.
    scope = "Horovod" + "".join(word.title() for word in naming.kind.split("_"))
    with tf.device("/cpu:0"), tf.name_scope(scope):
        results: list[Any] = _add_node(collective, request, by_node_name, tensors, graph)
        return results


def _warn_about_copies(tensors: Sequence[Any]) -> None:
    """Warns once that tensors on GPUs are copied: no other library can wait on the streams of TensorFlow."""
    global _warned_of_copies
    if _warned_of_copies:
        return
    if not tf.config.get_visible_devices("GPU"):
        _warned_of_copies = True  # no GPU, so there is nothing to warn of
    # The device of a graph's tensors is not known before the graph runs.
    elif not tf.executing_eagerly() or any("GPU" in tensor.device for tensor in tensors):
        _warned_of_copies = True
        _log.warning(
            "TensorFlow's tensors on GPUs are copied through host memory: only PyTorch's tensors are sent directly "
            "from the GPU."
        )


_warned_of_copies = False


def check_tensor(tensor: Any, kind: str, *, rows: bool = False) -> Any:
    """Return `tensor`, also a variable, array or number, as a ``tf.Tensor`` that can be sent, with rows if it must.

    Raises ValueError, also TensorFlow's: it is of another element type, or has no dimension.
    """
    converted = tf.convert_to_tensor(tensor)
    if converted.dtype != converted.dtype.base_dtype:  # of TensorFlow 1: the result of a variable's assign()
        converted = tf.identity(converted)
    if converted.dtype.name not in _SENDABLE:
        message = (
            f"{describe_call(kind)}: tensors of type {converted.dtype.name} cannot be sent; supported types: "
            f"{', '.join(sorted(_SENDABLE))}."
        )
        raise to_tensorflow_error(ValueError(message))
    if rows and converted.shape.rank == 0:
        message = (
            f"{describe_call(kind)}: tensors are split along dimension 0, and a 0-dimensional tensor has no rows: use "
            "tf.expand_dims."
        )
        raise to_tensorflow_error(ValueError(message), tf.errors.FailedPreconditionError)
    return converted


def check_group(tensors: Any, kind: str) -> list[Any]:
    """Return the members of a group. Raises ValueError when there are none, or they are no list."""
    if not isinstance(tensors, (list, tuple)):
        raise ValueError(f"{describe_call(kind)}: a list of tensors is needed, not {tensors!r:.100}.")
    if not tensors:
        raise ValueError(f"{describe_call(kind)}: at least one tensor is needed, and the list is empty.")
    return list(tensors)


def _is_for_xla(graph: Any) -> bool:
    """Return whether a graph is built for XLA, whose own error would only name a collective's nodes as unknown."""
    context = graph._get_control_flow_context()
    if context is not None and context.IsXLAContext():
        return True
    return any(getattr(function, "_jit_compile", None) is True for function, _ in _iterate_traced())


def _iterate_traced() -> Iterator[tuple[Any, Any]]:
    """Yield the tf.functions that are being traced (they are on the call stack), innermost first, and their graphs."""
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


def _make_request_name(naming: Naming, graph: Any) -> tuple[str, bool]:
    """Return the request's name in a graph, and whether the node's name is added to it."""
    if naming.request is not None:
        return (naming.request if naming.by_node_name else _number_request(naming.request, graph)), naming.by_node_name
    if naming.name is not None:
        scope = "" if naming.whole else graph.get_name_scope()
        return (f"{naming.kind}.{scope}/{naming.name}" if scope else f"{naming.kind}.{naming.name}"), False
    if not graph.building_function:
        # TensorFlow keeps the names of a graph's nodes apart, also from those of a graph that is imported into it.
        return f"{naming.kind}.node", True
    return _name_unnamed(naming.kind, graph), False


def _number_request(request: str, graph: Any) -> str:
    """Return the name of a request that is derived from another's, unique also if a graph has several of them."""
    counts = _derived.setdefault(graph, Counter())
    counts[request] += 1
    return request if counts[request] == 1 else f"{request}.{counts[request] - 1}"


def _name_unnamed(kind: str, graph: Any) -> str:
    """Return the name of a collective that the user gave none: the same on ranks that trace the same functions.

    A function that calls another one may run its own collectives beside the other's: their names differ by the
    function. How often, in which order and inside of what a rank has traced them makes no difference.
    """
    function, root = next(_iterate_traced(), (None, None))
    if root is None:
        root = graph
        # Branches and bodies have separate graphs: they count in the graph that they belong to.
        while getattr(root, "outer_graph", None) is not None and root.outer_graph.building_function:
            root = root.outer_graph
    counts = _unnamed.setdefault(root, Counter())
    counts[kind] += 1
    return ".".join([kind, "node", *([] if function is None else [_describe_source(function)]), str(counts[kind] - 1)])


def _list_control_flow_scopes(graph: Any) -> list[str]:
    """Return the name scopes of the cond, case and while operations around a graph, the outermost first."""
    scopes: list[str] = []
    while isinstance(graph, _BRANCHES):
        graph = graph.outer_graph
        scopes.insert(0, graph.get_name_scope())
    return scopes


def _describe_source(function: Any) -> str:
    """Return the name and the line of what a tf.function was made of, as they are on every rank."""
    python = inspect.unwrap(function._python_function)
    while isinstance(python, functools.partial):
        python = inspect.unwrap(python.func)
    code = getattr(python, "__code__", None)
    name = getattr(python, "__qualname__", type(python).__qualname__)
    return re.sub(r"[^\w.]", "", f"{name}.{getattr(code, 'co_firstlineno', 0)}")


def _run_independently(graph: Any, *nodes: Any) -> None:
    """Exempt nodes from tf.function's rule that nodes with effects run one after another, in traced order."""
    order = getattr(graph, "experimental_acd_manager", None)
    if order is not None:
        for node in nodes:
            order.run_independently(node)


def _add_node(
    collective: GraphCollective, request: str, by_node_name: bool, tensors: Sequence[Any], graph: Any
) -> list[Any]:
    """Put a node into a graph, and return its results."""
    op = collective.op
    attributes: dict[str, Any] = {
        "request": request,
        "by_node_name": by_node_name,
        # Distinguishes a copy of the node from it: see native/tensorflow/nodes.cc, Copy.
        "node_name": "\n".join([*_list_control_flow_scopes(graph), graph.unique_name(op, mark_as_used=False)]),
        "process_set_id": collective.process_set.process_set_id,
        "process_set_ranks": works.format_ranks(collective.process_set),
    }
    if op in (works.ALLREDUCE, works.REDUCESCATTER):
        attributes["reduce_op"] = int(collective.reduce_op)
        attributes["prescale_factor"] = _make_number(collective.prescale)
        attributes["postscale_factor"] = _make_number(collective.postscale)
        if op == works.ALLREDUCE:
            attributes["residues"] = collective.residues
    elif op in (works.BROADCAST, works.BROADCAST_VARIABLES):
        attributes["root_rank"] = collective.root_rank
    elif op in (works.AGREE, works.QUESTION):
        attributes["text"] = collective.text
    inputs: dict[str, Any] = {}
    if op == works.ALLTOALL:
        inputs = {"tensors": list(tensors[:1]), "splits": tensors[1]}
    elif op not in (works.AGREE, works.QUESTION):
        inputs = {"tensors": list(tensors)}
    output = op_def_library.apply_op(op, **inputs, **attributes)
    if op == works.AGREE:
        return [output]
    results: list[Any] = tf.nest.flatten(output)
    node = results[0].op
    _run_independently(graph, node)
    for result, shape in zip(results, _find_shapes(op, tensors), strict=True):
        result.set_shape(shape)
    if execute.must_record_gradient():
        flat = [item for pair in attributes.items() for item in pair]
        execute.record_gradient(op, node.inputs, tuple(flat), results)
    return results


def _make_number(value: float) -> Any:
    return tf.make_tensor_proto(value, tf.float64, shape=[])


def _find_shapes(op: str, tensors: Sequence[Any]) -> list[Any]:
    """Return the known dimensions of an op's results."""
    if op == works.QUESTION:
        return [tf.TensorShape([])]
    if op in (works.ALLREDUCE, works.BROADCAST, works.BROADCAST_VARIABLES):
        return [tensor.shape for tensor in tensors]
    if op == works.ALLTOALL:
        return [_clear_rows(tensors[0].shape), tf.TensorShape([None])]
    return [_clear_rows(tensor.shape) for tensor in tensors]


def _clear_rows(shape: Any) -> Any:
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])
