"""Collectives on whole Python objects, as Horovod's API has them.

The objects travel pickled, between the ranks of one job, over connections that were authenticated with the job's key:
a rank unpickles only what another rank of its own job made.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import cloudpickle

from spark_estimator._native import DType, Op
from spark_estimator.collectives import context
from spark_estimator.collectives.ops import Tensor, auto_name, submit
from spark_estimator.errors import HorovodInternalError


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The root's object, on every rank. All ranks call it.

    Args:
        obj: what to send; looked at on the root only.
        root_rank: whose object it is.
        name: by which the ranks' calls meet; None: the n-th call without a name meets the others' n-th.

    Returns:
        On the root `obj` itself, elsewhere a copy.

    Raises:
        HorovodInternalError: on every rank, when the root cannot pickle its object; there with the reason as the cause.
    """
    size = context.size()
    if not 0 <= root_rank < size:
        raise ValueError(f"root_rank={root_rank} is not one of the {size} ranks.")
    name = auto_name("broadcast_object") if name is None else name
    is_root = context.rank() == root_rank
    payload, problem = _dumped(obj) if is_root else (b"", None)
    # The length goes first, and -1 for a failure: the others wait for the root and must hear of it.
    length = ctypes.c_int64(-1 if problem else len(payload))
    _broadcast(f"{name}.length", ctypes.addressof(length), 1, DType.INT64, root_rank, length)
    if length.value < 0:
        what = f"its object of type {type(obj).__qualname__}" if is_root else "its object"
        raise HorovodInternalError(
            f"broadcast_object {name!r}: root rank {root_rank} cannot pickle {what}."
        ) from problem
    buffer = ctypes.create_string_buffer(payload, length.value)
    _broadcast(f"{name}.data", ctypes.addressof(buffer), length.value, DType.UINT8, root_rank, buffer)
    return obj if is_root else pickle.loads(buffer)  # noqa: S301  from a rank of this job, see above


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """All ranks' objects, on every rank. All ranks call it.

    Args:
        obj: this rank's.
        name: as in `broadcast_object`.

    Returns:
        [size], the objects in rank order.

    Raises:
        HorovodInternalError: on every rank, when some rank cannot pickle its object; the text names the rank.
    """
    name = auto_name("allgather_object") if name is None else name
    payload, problem = _dumped(obj)
    # A rank that cannot pickle takes part with nothing, which no pickle is, so that all learn of it.
    buffer = ctypes.create_string_buffer(payload, max(1, len(payload)))
    tensor = Tensor(ctypes.addressof(buffer), 0, len(payload), (len(payload),))
    data, rows = submit(Op.ALLGATHER, name, [tensor], DType.UINT8, keep=buffer).gathered()
    failed = [rank for rank, length in enumerate(rows) if length == 0]
    if failed:
        which = "rank " + ", ".join(map(str, failed))
        what = f"its object of type {type(obj).__qualname__}" if problem else "its object"
        raise HorovodInternalError(f"allgather_object {name!r}: {which} cannot pickle {what}.") from problem
    objects = []
    start = 0
    for length in rows:
        objects.append(pickle.loads(data[start : start + length]))  # noqa: S301  from a rank of this job
        start += length
    return objects


def _broadcast(name: str, address: int, count: int, dtype: DType, root_rank: int, keep: object) -> None:
    tensor = Tensor(address, address, count, (count,))
    submit(Op.BROADCAST, name, [tensor], dtype, root_rank=root_rank, keep=keep).wait()


def _dumped(obj: Any) -> tuple[bytes, Exception | None]:
    """The pickle of `obj`, or nothing and the reason."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:  # pickling runs the objects' own code, which may raise anything
        return b"", error
