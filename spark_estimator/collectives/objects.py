"""Collectives on whole Python objects, as Horovod's API has them.

The objects are sent pickled, between the ranks of one job, over connections that were authenticated with the job's key:
a rank unpickles only what another rank of its own job made.
"""

from __future__ import annotations

import ctypes
import pickle
import reprlib
from typing import Any

import cloudpickle

from spark_estimator._native import DType, Op
from spark_estimator.collectives import context
from spark_estimator.collectives.ops import Tensor, kind_of_unnamed, run, to_whole_number
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.collectives.requests import gather_bytes
from spark_estimator.errors import HorovodInternalError


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet | None = global_process_set
) -> Any:
    """Return the root's object, on every rank. All ranks of the set call it.

    Args:
        obj: what to send; looked at on the root only.
        root_rank: whose object it is; its number in the job, also for a process set.
        name: matches the ranks' calls; None: a rank's n-th call without a name matches the others' n-th.
        process_set: whose ranks take part; None: all.

    Returns:
        On the root `obj` itself, elsewhere a copy.

    Raises:
        TypeError: the name is no string.
        ValueError: the root is none of the set's ranks, or the name cannot be sent.
        HorovodInternalError: on every rank, when the root cannot pickle its object; there with the reason as the cause.
    """
    _check_name("broadcast_object", name)
    is_root = context.rank() == to_whole_number(root_rank)
    payload, problem = _dump(obj) if is_root else (b"", None)
    # The length is sent first, and -1 for a failure: the others wait for the root and must receive its error.
    length = ctypes.c_int64(-1 if problem else len(payload))
    _broadcast("length", name, ctypes.addressof(length), 1, DType.INT64, root_rank, process_set, length)
    if length.value < 0:
        detail = f" It has the type {type(obj).__qualname__}: {problem}" if problem else ""
        raise HorovodInternalError(
            f"{_format_label('broadcast_object', name)}: the object of the root, rank {root_rank}, cannot be "
            f"pickled.{detail}"
        ) from problem
    buffer = ctypes.create_string_buffer(payload, length.value)
    _broadcast("data", name, ctypes.addressof(buffer), length.value, DType.UINT8, root_rank, process_set, buffer)
    return obj if is_root else pickle.loads(buffer)  # noqa: S301  from a rank of this job, see above


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet | None = global_process_set
) -> list[Any]:
    """Return all ranks' objects, on every rank. All ranks of the set call it.

    Args:
        obj: this rank's.
        name, process_set: as in `broadcast_object`.

    Returns:
        [size of the set], the objects in rank order.

    Raises:
        TypeError, ValueError: the name is no string, or cannot be sent.
        HorovodInternalError: on every rank, when some rank cannot pickle its object; the text names the rank.
    """
    _check_name("allgather_object", name)
    payload, problem = _dump(obj)
    # A rank that cannot pickle takes part with nothing, which no pickle is, so that all learn of it.
    engine = context.engine(process_set)
    unnamed = kind_of_unnamed("allgather_object")
    pickles = gather_bytes(engine, unnamed if name is None else name, payload, unnamed=name is None)
    failed = [rank for rank, pickled in zip(engine.ranks, pickles, strict=True) if not pickled]
    if failed:
        which = f"rank {failed[0]}" if len(failed) == 1 else f"ranks {', '.join(map(str, failed))}"
        detail = f" This rank's object has the type {type(obj).__qualname__}: {problem}" if problem else ""
        raise HorovodInternalError(
            f"{_format_label('allgather_object', name)}: the object of {which} cannot be pickled.{detail}"
        ) from problem
    return [pickle.loads(pickled) for pickled in pickles]  # noqa: S301  from ranks of this job


def _broadcast(
    suffix: str,
    name: str | None,
    address: int,
    count: int,
    dtype: DType,
    root_rank: int,
    process_set: ProcessSet | None,
    keep: object,
) -> None:
    run(
        Op.BROADCAST,
        kind_of_unnamed(f"broadcast_object.{suffix}") if name is None else f"{name}.{suffix}",
        [Tensor(address, address, dtype, (count,))],
        root_rank=root_rank,
        process_set=process_set,
        keep=keep,
        repeats=False,
        unnamed=name is None,
    )


def _check_name(kind: str, name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{kind}: name must be a string, not {reprlib.repr(name)}.")


def _format_label(kind: str, name: str | None) -> str:
    return kind if name is None else f"{kind} {name!r}"


def _dump(obj: Any) -> tuple[bytes, Exception | None]:
    """Return the pickle of `obj`, or nothing and the reason."""
    try:
        return cloudpickle.dumps(obj), None
    except Exception as error:  # pickling runs the objects' own code, which may raise anything
        return b"", error
