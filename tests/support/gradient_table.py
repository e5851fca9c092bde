"""Horovod's definition of each collective's gradient, as numbers: what every binding has to give.

Each rank r of a process set of m ranks has a tensor x of six elements, and the loss r + 1 times the sum of what the
collective gives it. S is the sum of these weights over the set. Horovod 0.28.1 (``horovod/torch/mpi_ops.py``,
``horovod/tensorflow/mpi_ops.py``) defines the gradient of

* allreduce as the same allreduce of the incoming gradients, with its op and factors;
* allgather as this rank's rows of their average;
* broadcast as their average at the root, and zero elsewhere;
* alltoall as an alltoall of them by the numbers of rows that were received;
* reducescatter as an allgather of them, times the factors, and for a Sum times m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

ELEMENTS = 6
PRESCALE, POSTSCALE = 0.5, 6.0
_FACTOR = PRESCALE * POSTSCALE


def weights(ranks: Sequence[int]) -> float:
    """S."""
    return sum(rank + 1.0 for rank in ranks)


def splits(ranks: Sequence[int]) -> list[int]:
    """How many elements each rank gets in an uneven alltoall."""
    return [ELEMENTS - len(ranks) + 1] + [1] * (len(ranks) - 1)


def _all(value: float) -> list[float]:
    return [value] * ELEMENTS


def _shares(ranks: Sequence[int], shares: Sequence[int], factor: float = 1.0) -> list[float]:
    """Each share has the weight of the rank that receives it."""
    return [(rank + 1.0) * factor for rank, share in zip(ranks, shares, strict=True) for _ in range(share)]


def _even(ranks: Sequence[int]) -> list[int]:
    return [ELEMENTS // len(ranks)] * len(ranks)


#: From this rank, and the ranks of the set, to the gradient of x. Groups are of x and 10 x.
TABLE: dict[str, Callable[[int, Sequence[int]], list[float]]] = {
    "allreduce, average": lambda rank, ranks: _all(weights(ranks) / len(ranks)),
    "allreduce, average with factors": lambda rank, ranks: _all(_FACTOR * weights(ranks) / len(ranks)),
    "allreduce, sum": lambda rank, ranks: _all(weights(ranks)),
    "allreduce, sum with factors": lambda rank, ranks: _all(_FACTOR * weights(ranks)),
    "allreduce, Adasum": lambda rank, ranks: _all(weights(ranks) / len(ranks)),  # of parallel vectors the average
    "grouped_allreduce, average": lambda rank, ranks: _all(11 * weights(ranks) / len(ranks)),
    "grouped_allreduce, sum with factors": lambda rank, ranks: _all(11 * _FACTOR * weights(ranks)),
    "allgather": lambda rank, ranks: _all(weights(ranks) / len(ranks)),
    "grouped_allgather": lambda rank, ranks: _all(11 * weights(ranks) / len(ranks)),
    "broadcast": lambda rank, ranks: _all(weights(ranks) / len(ranks) if rank == ranks[-1] else 0.0),
    "alltoall": lambda rank, ranks: _shares(ranks, _even(ranks)),
    "alltoall, splits": lambda rank, ranks: _shares(ranks, splits(ranks)),
    "reducescatter, average": lambda rank, ranks: _shares(ranks, _even(ranks)),
    "reducescatter, average with factors": lambda rank, ranks: _shares(ranks, _even(ranks), _FACTOR),
    "reducescatter, sum": lambda rank, ranks: _shares(ranks, _even(ranks), len(ranks)),
    "reducescatter, sum with factors": lambda rank, ranks: _shares(ranks, _even(ranks), _FACTOR * len(ranks)),
    "grouped_reducescatter, average": lambda rank, ranks: _shares(ranks, _even(ranks), 11),
    "grouped_reducescatter, sum with factors": lambda rank, ranks: _shares(
        ranks, _even(ranks), 11 * _FACTOR * len(ranks)
    ),
}


def sets_of(size: int) -> list[list[int]]:
    """Process sets of a job, the first of all ranks; each rank registers all of them."""
    return [list(range(size)), *([[0, 2]] if size == 3 else []), *([[size - 1]] if size > 1 else [])]


def forms(hvd: object, cat: Callable[[list[object]], object]) -> dict[str, Callable[..., object]]:
    """What a binding gives for each line of the table: from x, the process set and its ranks to a tensor.

    Args:
        hvd: the binding's module.
        cat: joins its tensors.
    """
    api: dict[str, Callable[..., object]] = {
        name: getattr(hvd, name)
        for name in (
            "allreduce",
            "grouped_allreduce",
            "allgather",
            "grouped_allgather",
            "broadcast",
            "alltoall",
            "reducescatter",
            "grouped_reducescatter",
        )
    }
    ops = {name: getattr(hvd, name) for name in ("Average", "Sum", "Adasum")}
    factors = {"prescale_factor": PRESCALE, "postscale_factor": POSTSCALE}

    def made(line: str, x: object, process_set: object, ranks: Sequence[int]) -> object:
        kind, _, rest = line.partition(", ")
        arguments: dict[str, object] = {"process_set": process_set}
        if kind.endswith(("allreduce", "reducescatter")):
            name = rest.partition(" ")[0]
            arguments["op"] = ops["Adasum" if name == "Adasum" else name.title()]
            arguments |= factors if rest.endswith("factors") else {}
        if kind.startswith("grouped"):
            return cat(list(api[kind]([x, 10 * x], **arguments)))  # type: ignore[operator,call-overload]
        if kind == "broadcast":
            return api[kind](x, ranks[-1], **arguments)
        if rest == "splits":
            return api[kind](x, splits(ranks), **arguments)[0]  # type: ignore[index]
        return api[kind](x, **arguments)

    return {
        line: (lambda x, process_set, ranks, line=line: made(line, x, process_set, ranks))  # type: ignore[misc]
        for line in TABLE
    }
