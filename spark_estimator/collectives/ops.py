"""Collectives by address: every framework binding uses these to reach the engine of the job or of a set."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import context, requests
from spark_estimator.collectives.call import Call, Form, Gpu, Tensor
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.requests import Plan

__all__ = [
    "DType",
    "Gpu",
    "Handle",
    "Op",
    "Plan",
    "ReduceOp",
    "Tensor",
    "barrier",
    "join",
    "kind_of_unnamed",
    "plan",
    "run",
    "submit",
    "unnamed_number",
]

_UNNAMED = "unnamed "
_IN_HOST_MEMORY = (None, 0)  # no device, and no stream


def submit(
    op: Op,
    name: str,
    tensors: Sequence[Tensor],
    *,
    reduce_op: ReduceOp = ReduceOp.SUM,
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: tuple[int, ...] | None = None,
    keep: object = None,
    unnamed: bool = False,
    gpu: Gpu | None = None,
    residues: tuple[int, ...] = (),
) -> Handle:
    """Submit one collective and return at once. It runs when every rank has submitted one of that name.

    Args:
        op: the kind.
        name: matches the ranks' requests; 1 to 4095 bytes of UTF-8. One request of a name may be in flight.
        tensors: one; for an allreduce, allgather or reducescatter also several, of any types, done as one: all or
            nothing; none for a barrier and a join.
        reduce_op: allreduce, reducescatter: the reduction.
        root_rank: broadcast: whose input everyone's output becomes; its number in the job, also for a process set.
        process_set: whose ranks take part; None: all.
        prescale, postscale: allreduce, reducescatter: factors before and after the reduction.
        splits: alltoall: rows for each rank of the set; None: even shares.
        keep: referenced until the collective is done, and on a GPU until a stream waits for it; put the owners of
            the tensors' memory here.
        unnamed: `name` is a kind, whose requests are matched by their order; see `make_unnamed_kind`.
        gpu: the GPU that holds all tensors; None: they are in host memory.
        residues: of each tensor; see ``call.Call``.

    Raises:
        NotInitializedError: ``init()`` has not been called, or ``shutdown()`` has.
        DuplicateNameError: one of that name is still in progress on this rank.
        ValueError: an argument is malformed, or this rank is not in the set. Nothing was sent.
        HorovodInternalError: the job has failed or ended before.
    """
    engine = context.engine(process_set)
    device, stream = gpu or _IN_HOST_MEMORY
    call = Call(
        op, name, reduce_op, prescale, postscale, _find_root(engine, op, root_rank), splits, unnamed, device, residues
    )
    return requests.submit(engine, call, tensors, keep, stream=stream)


def run(
    op: Op,
    name: str,
    tensors: Sequence[Tensor],
    *,
    reduce_op: ReduceOp = ReduceOp.SUM,
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: tuple[int, ...] | None = None,
    keep: object = None,
    repeats: bool = True,
    unnamed: bool = False,
    gpu: Gpu | None = None,
    residues: tuple[int, ...] = (),
) -> Handle | None:
    """Submit one collective and return when it is done: faster than `submit` and ``wait``, above all for small ones.

    Args:
        op: the kind; the rest as for `submit`.
        repeats: whether a call of this name and form may be repeated; False for what is used once.
        unnamed, gpu, residues: as for `submit`. What is enqueued on the GPU's stream afterwards finds the outputs
            written.

    Returns:
        For an op that makes its result itself (allgather, alltoall, join) the handle, done; else None.

    Raises:
        As `submit` and ``Handle.wait`` do.
    """
    engine = context.engine(process_set)
    device, stream = gpu or _IN_HOST_MEMORY
    call = Call(
        op, name, reduce_op, prescale, postscale, _find_root(engine, op, root_rank), splits, unnamed, device, residues
    )
    return requests.run(engine, call, tensors, keep, repeats=repeats, stream=stream)


def plan(
    op: Op,
    name: str,
    forms: Sequence[Form],
    *,
    reduce_op: ReduceOp = ReduceOp.SUM,
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    device: int | None = None,
    residues: Sequence[int] = (),
    keep: object = None,
) -> Plan:
    """Make a collective to be submitted many times, with other memory each time; see `Plan`.

    Args:
        op: the kind; the rest as for `submit`.
        forms: element type and shape of each tensor.
        device: the GPU that will hold the tensors; None: host memory.
        residues: of each tensor; see ``call.Call``.
        keep: referenced as long as the plan; put the owners of the residues here.
    """
    engine = context.engine(process_set)
    root = _find_root(engine, op, root_rank)
    call = Call(op, name, reduce_op, prescale, postscale, root, device=device, residues=tuple(residues))
    return Plan(engine, call, forms, keep)


def barrier(process_set: ProcessSet | None = None) -> None:
    """Return when every rank of the set is in it. Raise as `run` does."""
    run(Op.BARRIER, kind_of_unnamed("barrier"), (), process_set=process_set, unnamed=True)


def join() -> int:
    """Announces that this rank has no more data: it takes part with zeros in others' allreduces until all have joined.

    Return the rank that joined last.
    """
    handle = run(Op.JOIN, kind_of_unnamed("join"), (), repeats=False, unnamed=True)
    assert handle is not None
    last = handle.last_joined()
    # Until then the ranks may have made different numbers of calls without a name. The engine restarts its count, too.
    context.restart_numbers(_UNNAMED)
    context.engine(None).joins += 1
    return last


def kind_of_unnamed(kind: str) -> str:
    """Return the kind that replaces a missing name: ``'allreduce.noname'``, for ``unnamed=True``.

    The engine counts the requests of a kind, so that this one becomes ``'allreduce.noname.3'``. The calls of
    ranks that call in the same order match.
    """
    return kind + ".noname"


def unnamed_number(kind: str) -> int:
    """Count calls without a name since `init` or the last `join`, for requests that need a name to be matched."""
    return context.take_number(_UNNAMED + kind)


def _find_root(engine: Engine, op: Op, root_rank: int) -> int:
    """Return the root's number in its group."""
    if op is not Op.BROADCAST:
        return 0
    root = to_whole_number(root_rank)
    if root is None or root not in engine.ranks:
        if engine.ranks[-1] >= engine.size:
            ranks = f"one of the ranks {list(engine.ranks)} of the set"
        else:
            ranks = f"one of the ranks 0 to {engine.size - 1}" if engine.size > 1 else "0, the only rank"
        number = "" if root is not None else ", as a whole number"
        raise ValueError(f"broadcast on rank {engine.global_rank}: root_rank={root_rank!r} must be {ranks}{number}.")
    return engine.ranks.index(root)


def to_whole_number(value: object) -> int | None:
    """Return `value` as a whole number; None where it is none: a text, a fraction, several numbers."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # which is what it is asked
    except (TypeError, ValueError):  # a tensor of several numbers, for one
        return None
