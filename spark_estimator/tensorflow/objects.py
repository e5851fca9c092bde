"""Collectives on whole Python objects, with the arguments that Horovod's have for TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_estimator.collectives import objects
from spark_estimator.collectives.process_set import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object, on every rank. All ranks of the set call it; it runs at once, also beside a graph.

    Args:
        obj: what to send, by cloudpickle; looked at on the root only.
        root_rank: whose object it is; its number in the job, also for a process set.
        session: accepted for Horovod's signature; none is needed.
        name: matches the ranks' calls; None: by their order.
        process_set: whose ranks take part; by default all.

    Raises:
        HorovodInternalError: on every rank, when the root cannot pickle its object, or a rank is lost.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Return a function that calls `broadcast_object` with these arguments."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return all ranks' objects, on every rank, in rank order. All ranks of the set call it.

    Args:
        obj: this rank's.
        session, name, process_set: as in `broadcast_object`.

    Raises:
        HorovodInternalError: on every rank, when some rank cannot pickle its object, or a rank is lost.
    """
    return objects.allgather_object(obj, name, process_set)
