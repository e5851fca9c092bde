"""Programs of collectives whose tensors are on a fake GPU, and are written and read on late streams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from spark_estimator._native import DType, Op
from spark_estimator.collectives import context, ops
from spark_estimator.collectives.handle import GATHERING, Handle
from spark_estimator.collectives.ops import Gpu
from spark_estimator.collectives.process_set import ProcessSet
from tests import fake_gpus
from tests.fake_gpus import Memory
from tests.scenarios.collectives.programs import FLOATS, Step, loaded, stored

ALL_DTYPES = tuple(DType)
# The longest time until a stream has written the inputs: code that does not wait for it reads too early.
LATE_MICROSECONDS = 300


class OnGpu(NamedTuple):
    """A rank's device, with memory on it.

    Attributes:
        gpu: and a stream of it.
        memory: of the tensor.
        tensors: the tensor, reduced in place.
    """

    gpu: Gpu
    memory: Memory
    tensors: list[ops.Tensor]


def on_gpu(device: int, values: Any, dtype: DType = DType.FLOAT64) -> OnGpu:
    """Joins the job, chooses a device and puts an array of one dimension on it."""
    context.init()
    fake_gpus.use(device)
    memory = fake_gpus.on_gpu(values)
    tensors = [ops.Tensor(memory.address, memory.address, dtype, values.shape)]
    return OnGpu(Gpu(device, fake_gpus.new_stream()), memory, tensors)


class GpuRunning:
    """As ``programs.Running``, on a GPU: one step on one rank.

    The stream's work writes the inputs to their memory, which is poisoned before; the outputs are poisoned, too, and
    looked at by work on the stream that awaits them.

    Args:
        step: what to do.
        process_set: of the step's ranks.
        device: the GPU.
        streams: one of them gives, and one of them takes; which, a generator decides that is this rank's own.
    """

    def __init__(self, step: Step, process_set: ProcessSet | None, device: int, streams: Sequence[int]) -> None:
        self.step = step
        self.member = step.ranks.index(context.rank())
        chosen = random.Random(f"{step.name} {step.seed} {context.rank()}")
        self.gives, self.takes = chosen.choice(streams), chosen.choice(streams)
        self._sources = [fake_gpus.on_gpu(each) for each in self._stored(step.inputs(self.member))]
        self._right = self._stored(step.expected(self.member))
        self._inputs = [Memory(source.array.shape, source.array.dtype) for source in self._sources]
        self._outputs = self._made()
        fake_gpus.cuda().fake_cuda_delay(self.gives, chosen.randrange(LATE_MICROSECONDS))
        for source, target in zip(self._sources, self._inputs, strict=True):
            fake_gpus.copy(target, source, self.gives)
        makes_memory = step.op in GATHERING
        self.tensors = [
            ops.Tensor(source.address, 0 if makes_memory else target.address, dtype, source.array.shape)
            for source, target, dtype in zip(self._inputs, self._outputs, step.dtypes, strict=True)
        ]
        self.options: dict[str, Any] = {
            "reduce_op": step.reduce_op,
            "root_rank": step.ranks[step.root],
            "process_set": process_set,
            "prescale": step.prescale,
            "postscale": step.postscale,
            "splits": step.splits[self.member] if step.splits else None,
            "keep": (self._sources, self._inputs, self._outputs),
            "unnamed": step.unnamed,
            "gpu": Gpu(device, self.gives),
        }
        self.handle: Handle | None = None

    def _stored(self, numbers: Sequence[Any]) -> list[Any]:
        return [stored(each, dtype) for each, dtype in zip(numbers, self.step.dtypes, strict=True)]

    def _made(self) -> list[Memory]:
        if self.step.in_place and self.step.op in (Op.ALLREDUCE, Op.BROADCAST):
            return self._inputs
        return [Memory(right.shape, right.dtype) for right in self._right]

    def submit(self) -> None:
        self.handle = ops.submit(self.step.op, self.step.name, self.tensors, **self.options)

    def run(self) -> None:
        self.handle = ops.run(self.step.op, self.step.name, self.tensors, **self.options)
        self.takes = self.gives  # which waits because of `run`

    def check(self) -> None:
        """Has a stream wait and read, and compares every element of what it has read."""
        gathers = self.step.op in GATHERING
        if gathers:
            assert self.handle is not None
            rows = [self.handle.rows(number) for number in range(len(self._right))]
            sent = (
                list(self.step.rows)
                if self.step.op is Op.ALLGATHER
                else [tuple(splits[self.member] for splits in self.step.splits)]
            )
            assert rows == sent, (self.step, rows)
            self.handle.collect([output.address if output.array.size else 0 for output in self._outputs], self.takes)
        elif self.handle is not None:
            self.handle.await_on(self.takes)
        read = [Memory(output.array.shape, output.array.dtype) for output in self._outputs]
        for output, copy in zip(self._outputs, read, strict=True):
            fake_gpus.copy(copy, output, self.takes)
        fake_gpus.synchronize(self.takes)
        for number, right in enumerate(self._right):
            dtype = self.step.dtypes[number]
            got, expected = loaded(read[number].array, dtype), loaded(right, dtype)
            assert numpy.array_equal(got, expected), (self.step, number, got, expected)


def random_step(number: int, size: int, chance: random.Random, prefix: str = "step") -> Step:
    """One of all ops, with as many tensors, of such types, shapes and rows, as chance has it."""
    from spark_estimator._native import ReduceOp

    op = chance.choice([Op.ALLREDUCE, Op.ALLREDUCE, Op.ALLGATHER, Op.BROADCAST, Op.ALLTOALL, Op.REDUCESCATTER])
    count = chance.choice([1, 1, 1, 2, 5]) if op in (Op.ALLREDUCE, Op.ALLGATHER, Op.REDUCESCATTER) else 1
    dtypes = tuple(chance.choice(ALL_DTYPES) for _ in range(count))
    if op is Op.ALLREDUCE:
        kinds = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT, ReduceOp.AVERAGE]
    else:
        kinds = [ReduceOp.SUM, ReduceOp.AVERAGE]
    reduce_op = chance.choice(kinds) if op in (Op.ALLREDUCE, Op.REDUCESCATTER) else ReduceOp.SUM
    if reduce_op is ReduceOp.AVERAGE:
        dtypes = tuple(dtype if dtype in FLOATS else DType.FLOAT32 for dtype in dtypes)
    longest = chance.choice([3, 40, 3000])
    shapes = tuple(
        tuple(chance.randrange(longest if axis == 0 else 4) for axis in range(chance.randrange(1, 3)))
        for _ in range(count)
    )
    # By powers of two: exact in every type.
    scales = op in (Op.ALLREDUCE, Op.REDUCESCATTER) and reduce_op is ReduceOp.SUM and chance.random() < 0.3
    scales = scales and DType.BOOL not in dtypes
    return Step(
        op=op,
        name=f"{prefix} {number}",
        ranks=tuple(range(size)),
        dtypes=dtypes,
        shapes=shapes,
        rows=tuple(tuple(chance.randrange(longest) for _ in range(size)) for _ in range(count))
        if op is Op.ALLGATHER
        else (),
        splits=tuple(tuple(chance.randrange(longest // 2 + 1) for _ in range(size)) for _ in range(size))
        if op is Op.ALLTOALL
        else (),
        reduce_op=reduce_op,
        prescale=chance.choice([0.5, 2.0]) if scales else 1.0,
        postscale=chance.choice([0.5, 4.0]) if scales else 1.0,
        root=chance.randrange(size),
        in_place=chance.random() < 0.5,
        seed=chance.randrange(1 << 30),
    )
