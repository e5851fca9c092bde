"""Programs of collectives, one value for all ranks: what each rank submits, and the expected result from NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import arrays, context, ops
from spark_estimator.collectives.handle import Handle
from spark_estimator.collectives.process_set import ProcessSet

Shape = tuple[int, ...]
Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True)
class Step:
    """One collective.

    Attributes:
        op, name, reduce_op, prescale, postscale, unnamed: as the engine has them.
        ranks: of the job, that take part; their order is that of the group.
        dtypes: of the tensors.
        shapes: of the tensors; for an allgather or alltoall without their rows.
        rows: [tensor][rank of the group] of an allgather.
        splits: [from][to] rows of an alltoall, numbers of the group.
        root: of a broadcast, its number in the group.
        in_place: the result replaces the input, if the op allows it.
        seed: of the values.
    """

    op: Op
    name: str
    ranks: tuple[int, ...]
    dtypes: tuple[DType, ...] = ()
    shapes: tuple[Shape, ...] = ()
    rows: tuple[tuple[int, ...], ...] = ()
    splits: tuple[tuple[int, ...], ...] = ()
    reduce_op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    in_place: bool = False
    unnamed: bool = False
    seed: int = 0

    def inputs(self, member: int) -> list[Array]:
        """What a rank, by its number in the group, gives: small whole numbers, exact in every type."""
        return [self._numbers(member, tensor) for tensor in range(len(self.dtypes))]

    def _numbers(self, member: int, tensor: int) -> Array:
        generator = numpy.random.default_rng([self.seed, member, tensor])
        dtype = self.dtypes[tensor]
        shape = self.shapes[tensor]
        if self.op is Op.ALLGATHER:
            shape = (self.rows[tensor][member], *shape)
        elif self.op is Op.ALLTOALL:
            shape = (sum(self.splits[member]), *shape)
        if dtype is DType.BOOL:
            return generator.integers(0, 2, shape)
        if self.reduce_op is ReduceOp.PRODUCT and self.op is Op.ALLREDUCE:
            return generator.integers(1, 3, shape)
        numbers = generator.integers(0 if dtype in UNSIGNED else -5, 6, shape)
        # Values whose average over the group is a whole number.
        is_average = self.reduce_op is ReduceOp.AVERAGE and self.op in (Op.ALLREDUCE, Op.REDUCESCATTER)
        return numbers * len(self.ranks) if is_average and dtype in FLOATS else numbers

    def expected(self, member: int) -> list[Array]:
        """What that rank must get, one array for each tensor."""
        size = len(self.ranks)
        results = []
        for tensor, dtype in enumerate(self.dtypes):
            every = [self._numbers(other, tensor) for other in range(size)]
            if self.op is Op.ALLREDUCE:
                results.append(self._reduced(every, dtype))
            elif self.op is Op.REDUCESCATTER:
                reduced = self._reduced(every, dtype)
                shares = [len(reduced) // size + (other < len(reduced) % size) for other in range(size)]
                start = sum(shares[:member])
                results.append(reduced[start : start + shares[member]])
            elif self.op is Op.ALLGATHER:
                results.append(numpy.concatenate(every))
            elif self.op is Op.BROADCAST:
                results.append(every[self.root])
            elif self.op is Op.ALLTOALL:
                parts = []
                for other in range(size):
                    start = sum(self.splits[other][:member])
                    parts.append(every[other][start : start + self.splits[other][member]])
                results.append(numpy.concatenate(parts))
        return results

    def _reduced(self, every: list[Array], dtype: DType) -> Array:
        stacked = numpy.stack(every)
        if dtype is DType.BOOL:
            return stacked.max(0) if self.reduce_op in (ReduceOp.SUM, ReduceOp.MAX) else stacked.min(0)
        whole = dtype not in FLOATS
        scaled = stacked * self.prescale
        stacked = numpy.trunc(scaled) if whole else scaled
        reduced = {
            ReduceOp.AVERAGE: lambda: stacked.sum(0) / len(every),
            ReduceOp.SUM: lambda: stacked.sum(0),
            ReduceOp.MIN: lambda: stacked.min(0),
            ReduceOp.MAX: lambda: stacked.max(0),
            ReduceOp.PRODUCT: lambda: stacked.prod(0),
        }[self.reduce_op]()
        scaled = (numpy.trunc(reduced) if whole else reduced) * self.postscale
        return numpy.trunc(scaled) if whole else scaled


FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
#: Of whole numbers, without negatives.
UNSIGNED = frozenset({DType.UINT8, DType.UINT16})


def stored(numbers: Array, dtype: DType) -> Array:
    """Numbers as an array of that type; bfloat16, which NumPy has not, as the upper halves of float32."""
    if dtype is DType.BFLOAT16:
        return (numpy.ascontiguousarray(numbers).astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)
    return numpy.ascontiguousarray(numbers).astype(dtype.name.lower()).reshape(numbers.shape)


def loaded(array: Array, dtype: DType) -> Array:
    """The numbers of an array that `stored` could have made."""
    if dtype is DType.BFLOAT16:
        return (numpy.ascontiguousarray(array).astype(numpy.uint32) << 16).view(numpy.float32)
    return array


class Running:
    """One step on one rank: submitted when it is made, or run by `run`; its result is compared by `check`."""

    def __init__(self, step: Step, process_set: ProcessSet | None) -> None:
        self.step = step
        self.member = step.ranks.index(context.rank())
        self.inputs = [
            stored(numbers, dtype) for numbers, dtype in zip(step.inputs(self.member), step.dtypes, strict=True)
        ]
        self.right = [
            stored(numbers, dtype) for numbers, dtype in zip(step.expected(self.member), step.dtypes, strict=True)
        ]
        self.outputs = self._made()
        makes_memory = step.op in (Op.ALLGATHER, Op.ALLTOALL)
        self.tensors = [
            ops.Tensor(_address(source), 0 if makes_memory else _address(target), dtype, source.shape)
            for source, target, dtype in zip(self.inputs, self.outputs, step.dtypes, strict=True)
        ]
        self.options: dict[str, Any] = {
            "reduce_op": step.reduce_op,
            "root_rank": step.ranks[step.root],
            "process_set": process_set,
            "prescale": step.prescale,
            "postscale": step.postscale,
            "splits": step.splits[self.member] if step.splits else None,
            "keep": (self.inputs, self.outputs),
            "unnamed": step.unnamed,
        }
        self.handle: Handle | None = None

    def _made(self) -> list[Array]:
        if self.step.in_place and self.step.op in (Op.ALLREDUCE, Op.BROADCAST):
            return self.inputs
        # Dirty, so that an unwritten element shows.
        return [numpy.full(right.shape, 85, right.dtype) for right in self.right]

    def submit(self) -> None:
        self.handle = ops.submit(self.step.op, self.step.name, self.tensors, **self.options)

    def run(self) -> None:
        self.handle = ops.run(self.step.op, self.step.name, self.tensors, **self.options)

    def check(self) -> None:
        """Waits, and compares every element."""
        if self.handle is not None:
            self.handle.wait()
        for number, right in enumerate(self.right):
            got = self.outputs[number]
            if self.step.op in (Op.ALLGATHER, Op.ALLTOALL):
                assert self.handle is not None
                gathered = self.handle.gathered(number)
                got = numpy.frombuffer(gathered.data, right.dtype).reshape(right.shape)
                sent = (
                    self.step.rows[number]
                    if self.step.op is Op.ALLGATHER
                    else tuple(splits[self.member] for splits in self.step.splits)
                )
                assert gathered.rows == sent, (self.step, gathered.rows)
            # By value: the negative zero of a float is no error, and shows in bfloat16's bits.
            got, right = loaded(got, self.step.dtypes[number]), loaded(right, self.step.dtypes[number])
            assert numpy.array_equal(got, right), (self.step, number, got, right)


def _address(array: Array) -> int:
    return array.ctypes.data if array.size else 0


def sets_of(groups: list[tuple[int, ...]]) -> dict[tuple[int, ...], ProcessSet | None]:
    """Process sets for groups of ranks; all ranks call it alike. The group of all ranks needs none."""
    everyone = tuple(range(context.size()))
    return {ranks: None if ranks == everyone else context.add_process_set(ranks) for ranks in groups}


def run_in_orders_of_their_own(
    rank: int,
    steps: list[Step],
    sets: dict[tuple[int, ...], Any],
    order_seed: int,
    make: Callable[..., Any] = Running,
) -> None:
    """Submits the steps of this rank in another order than the other ranks, then waits for all in a third.

    Of those without a name the order is kept.
    """
    mine = [make(step, sets[step.ranks]) for step in steps if rank in step.ranks]
    unnamed = iter([running for running in mine if running.step.unnamed])
    shuffle = numpy.random.default_rng([order_seed, rank]).shuffle
    shuffle(mine)  # type: ignore[arg-type]
    mine = [next(unnamed) if running.step.unnamed else running for running in mine]
    for running in mine:
        running.submit()
    shuffle(mine)  # type: ignore[arg-type]
    for running in mine:
        running.check()


def run_one_after_another(
    rank: int, steps: list[Step], sets: dict[tuple[int, ...], Any], times: int, make: Callable[..., Any] = Running
) -> None:
    """Runs the steps of this rank, each to its end, several times: names are repeated, as in training."""
    for _ in range(times):
        for step in steps:
            if rank in step.ranks:
                running = make(step, sets[step.ranks])
                running.run()
                running.check()


def usable(size: int, sum_: Callable[..., Array] = arrays.allreduce) -> None:
    """Asserts that the job still works."""
    assert (sum_(numpy.ones(3), ReduceOp.SUM, "still usable") == size).all()


def sums_and_rows() -> list[float]:
    """Numbers of allreduces of three sizes and an allgather, the same on all ranks of the job."""
    rank = context.rank()
    results = []
    for count in (1, 1000, 1_000_000):
        values = numpy.full(count, rank + 1.0, numpy.float32)
        results.append(float(arrays.allreduce(values, ReduceOp.SUM, f"sum {count}").sum()) / count)
    rows = arrays.allgather(numpy.full((rank + 1, 3), rank), "rows")
    return [*results, float(rows.sum())]
