"""Makes all ranks start from one rank's variables: eagerly, in a graph, or by a hook of a session.

The ranks first compare what they are about to receive (names, shapes, types), so that different models end in an error
that names the first difference; then all variables are sent at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.reductions import describe_call
from spark_estimator.tensorflow import works
from spark_estimator.tensorflow.gathering import check_root
from spark_estimator.tensorflow.nodes import Naming, perform
from spark_estimator.tensorflow.works import GraphCollective

_KIND = "broadcast_variables"


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Copy the root's variables into those of every other rank. Collective.

    Args:
        variables: ``tf.Variable`` or Keras variables; any numeric type.
        root_rank: whose values everyone gets; its number in the job, also for a process set.
        process_set: whose ranks take part; by default all.
        inplace: accepted for Horovod's signature; the values are always assigned.

    Returns:
        In a graph an operation to run; eagerly None, and the variables have their values.

    Raises:
        ValueError: `root_rank` is not in the set, or a value is not a variable. Nothing was sent.
        MismatchError: the ranks' variables differ in name, shape or type; the first difference is named.
        HorovodInternalError: a rank is lost.
    """
    assigned = _broadcast(list(variables), root_rank, process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Broadcast as `broadcast_variables` does, but return the root's values.

    Args:
        variables, root_rank, process_set: as there.
        name: accepted for Horovod's signature.

    Returns:
        A tensor of each variable's new value.
    """
    listed = list(variables)
    assigned = _broadcast(listed, root_rank, process_set)
    return (
        [unwrap_variable(variable, _KIND).read_value() for variable in listed] if tf.executing_eagerly() else assigned
    )


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that copies the root's ``tf.compat.v1.global_variables()`` into those of every other rank.

    Raises:
        RuntimeError: TensorFlow executes eagerly: there are no global variables then.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() works only in TensorFlow 1 graphs: eager execution has no collection "
            "of global variables. Use hvd.broadcast_variables(model.variables, root_rank=0)."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc,unused-ignore]
    """Copies the root's global variables into those of all other ranks when a session has been made.

    For ``MonitoredTrainingSession(hooks=[...])``: after the variables were initialised, or restored from a checkpoint
    that only the root has.

    Args:
        root_rank: whose values everyone gets.
        device: accepted for Horovod's signature; collectives run in host memory.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        self.root_rank = root_rank
        self.bcast_op: Any = None
        self.device = device

    def begin(self) -> None:
        """Put the operation into the graph, which cannot be changed later."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self.bcast_op)


def unwrap_variable(value: Any, kind: str) -> Any:
    """Return the ``tf.Variable`` of a variable of TensorFlow or Keras. Raises ValueError for what is none."""
    inner = value if hasattr(value, "read_value") else getattr(value, "value", None)
    if not hasattr(inner, "read_value") or not hasattr(inner, "assign"):
        raise ValueError(f"{describe_call(kind)}: a variable is needed, not {value!r:.100}.")
    return inner


def _broadcast(variables: Sequence[Any], root_rank: int, process_set: ProcessSet) -> list[Any]:
    """Assign the root's values; return a tensor or an operation for each assignment."""
    root = check_root(root_rank, process_set, _KIND)
    inner = [unwrap_variable(variable, _KIND) for variable in variables]
    if not inner:
        return []
    collective = GraphCollective(works.BROADCAST_VARIABLES, process_set, root_rank=root)
    values = perform(collective, Naming(_KIND), [variable.read_value() for variable in inner])
    return [variable.assign(value) for variable, value in zip(inner, values, strict=True)]
