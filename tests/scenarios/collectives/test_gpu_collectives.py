"""Collectives on GPU tensors, from Python to the engine and back, on real processes with fake GPUs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_estimator._native import DType, Op, ReduceOp
from tests.rank_pool import RankPool
from tests.scenarios.collectives.programs import FLOATS, Step

#: How GPU tensors are sent, and what makes them.
WAYS = {
    "nccl": {},
    "staged": {"HOROVOD_GPU_OPERATIONS": "staged"},
    "old NCCL": {"FAKE_NCCL_VERSION": "21300"},
    "one GPU": {"FAKE_CUDA_DEVICES": "1"},
}
SIZES = [1, 2, 3, 4]


def call_in_a_job_that_goes_on(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    from spark_estimator.collectives import context
    from tests import fake_gpus

    if not context.is_initialized():
        context.init(process_sets="dynamic")
        fake_gpus.use(fake_gpus.device_of(rank))
        fake_gpus.streams = [fake_gpus.new_stream() for _ in range(2)]  # type: ignore[attr-defined]
    return function(rank, *args)


@pytest.fixture(scope="module")
def pools(fakes: dict[str, str]) -> Iterator[Callable[[int, str], RankPool]]:
    made: dict[tuple[int, str], RankPool] = {}

    def get(size: int, way: str) -> RankPool:
        key = size, way
        if key not in made or not made[key].usable:
            if key in made:
                made[key].close()
            made[key] = RankPool(size, call_in_a_job_that_goes_on, {**fakes, **WAYS[way]})
        return made[key]

    yield get
    for pool in made.values():
        pool.close()


def make(rank: int, streams: int = 2) -> Callable[..., Any]:
    """Makes steps on this rank's GPU."""
    import functools

    from tests import fake_gpus
    from tests.scenarios.collectives.gpu_programs import GpuRunning

    return functools.partial(
        GpuRunning,
        device=fake_gpus.device_of(rank),
        streams=fake_gpus.streams[:streams],  # type: ignore[attr-defined]
    )


def run_steps(rank: int, steps: list[Step], order_seed: int | None, times: int = 1) -> None:
    from tests.scenarios.collectives.programs import run_in_orders_of_their_own, run_one_after_another

    everyone: dict[tuple[int, ...], Any] = {step.ranks: None for step in steps}
    if order_seed is None:
        run_one_after_another(rank, steps, everyone, times, make(rank))
    else:
        run_in_orders_of_their_own(rank, steps, everyone, order_seed, make(rank))


def steps_of_every_op(size: int, dtype: DType) -> list[Step]:
    ranks = tuple(range(size))
    reductions = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
    if dtype in FLOATS:
        reductions.append(ReduceOp.AVERAGE)
    of_one: dict[str, Any] = {"ranks": ranks, "dtypes": (dtype,)}
    steps = [
        Step(Op.ALLREDUCE, f"reduce {op.name} {place}", shapes=((7, 3),), reduce_op=op, in_place=place, **of_one)
        for op in reductions
        for place in (False, True)
    ]
    steps += [
        Step(Op.ALLGATHER, "gather", shapes=((3,),), rows=(tuple(rank * 2 for rank in ranks),), **of_one),
        Step(Op.BROADCAST, "broadcast", shapes=((50,),), root=size - 1, **of_one),
        Step(Op.BROADCAST, "in place", shapes=((50,),), root=0, in_place=True, **of_one),
        Step(Op.ALLTOALL, "all to all", shapes=((2,),), splits=tuple((1,) * to + (3,) * (size - to) for to in ranks),
             **of_one),
        Step(Op.REDUCESCATTER, "scatter", shapes=((2 * size + 1, 3),), **of_one),
        Step(Op.ALLREDUCE, "without elements", shapes=((0, 4),), **of_one),
        Step(Op.ALLGATHER, "without rows", shapes=((3,),), rows=((0,) * size,), **of_one),
    ]  # fmt: skip
    if dtype is not DType.BOOL:
        # What NCCL does not do with integers, the host does.
        steps.append(Step(Op.ALLREDUCE, "scaled", shapes=((9,),), prescale=2.0, postscale=0.5, **of_one))
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_every_op_of_every_type(pools: Callable[[int, str], RankPool], size: int, way: str) -> None:
    def check(rank: int) -> tuple[str, int, int]:
        from spark_estimator.collectives import context

        for dtype in DType:
            run_steps(rank, steps_of_every_op(size, dtype), None, times=3)  # from the third on as a plan
        counters = context.engine().counters()
        return context.engine().describe("gpu"), counters["gpu_operations"], counters["staged_operations"]

    for description, by_group, staged in pools(size, way).run(check):
        if size == 1:
            assert by_group > 0
        elif way == "nccl":
            assert "NCCL 2.27.3" in description and by_group > staged > 0
        else:
            assert "host memory" in description and by_group == 0 and staged > 0
            assert ("2.13" in description) == (way == "old NCCL"), description
            assert ("share one GPU" in description) == (way == "one GPU"), description


@pytest.mark.slow
@pytest.mark.parametrize("way", ["nccl", "staged"])
@pytest.mark.parametrize("size", [2, 3])
def test_two_hundred_ops_in_other_orders_on_two_streams(
    pools: Callable[[int, str], RankPool], size: int, way: str
) -> None:
    from tests.scenarios.collectives.gpu_programs import random_step

    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    steps = [random_step(number, size, chance) for number in range(200)]

    def check(rank: int) -> None:
        for start in range(0, 200, 40):
            run_steps(rank, steps[start : start + 40], order_seed=seed + start)

    pools(size, way).run(check, timeout=120)


@pytest.mark.parametrize("way", ["nccl", "staged", "one GPU"])
def test_groups_of_ranks_have_their_own_way(pools: Callable[[int, str], RankPool], way: str) -> None:
    groups = [(0, 1, 2), (0, 2), (1, 2), (0,)]
    from tests.scenarios.collectives.gpu_programs import random_step

    chance = random.Random(4)
    steps = []
    for number in range(60):
        ranks = groups[number % len(groups)]
        step = random_step(number, len(ranks), chance, "of sets")
        steps.append(step.__class__(**{**step.__dict__, "ranks": ranks}))

    def check(rank: int) -> None:
        from spark_estimator.collectives import context
        from tests.scenarios.collectives.programs import run_one_after_another, sets_of

        sets = sets_of(groups)
        run_one_after_another(rank, steps, sets, 1, make(rank))
        for process_set in filter(None, sets.values()):
            context.remove_process_set(process_set)

    pools(3, way).run(check, timeout=120)


@pytest.mark.parametrize("way", ["nccl", "staged", "one GPU"])
def test_ranks_that_have_joined_count_as_zeros(pools: Callable[[int, str], RankPool], way: str) -> None:
    def check(rank: int) -> list[list[float]]:
        import numpy

        from spark_estimator.collectives import ops
        from spark_estimator.collectives.ops import Gpu
        from tests import fake_gpus

        stream = fake_gpus.new_stream()
        gpu = Gpu(fake_gpus.device_of(rank), stream)
        sums = []
        for turn in range(3):
            if turn > rank:  # rank 0 joins first
                break
            memory = fake_gpus.on_gpu(numpy.full(5, rank + 1.0))
            tensors = [ops.Tensor(memory.address, memory.address, DType.FLOAT64, (5,))]
            ops.run(Op.ALLREDUCE, f"turn {turn}", tensors, keep=memory, gpu=gpu)
            fake_gpus.synchronize(stream)
            sums.append(memory.array.tolist())
        last = ops.join()
        assert last == 2
        return sums

    first, second, third = [[6.0] * 5], [[6.0] * 5, [5.0] * 5], [[6.0] * 5, [5.0] * 5, [3.0] * 5]
    assert pools(3, way).run(check) == [first, second, third]


def test_ranks_that_disagree_where_their_tensors_are(pools: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> str:
        import numpy

        from spark_estimator.collectives import ops
        from spark_estimator.collectives.ops import Gpu
        from spark_estimator.errors import MismatchError
        from tests import fake_gpus

        stream = fake_gpus.new_stream()
        memory = fake_gpus.on_gpu(numpy.ones(5))
        tensors = [ops.Tensor(memory.address, memory.address, DType.FLOAT64, (5,))]
        gpu = Gpu(rank, stream)
        try:
            ops.run(Op.ALLREDUCE, "here and there", tensors, keep=memory, gpu=gpu if rank else None)
        except MismatchError as error:
            error_text = str(error)
        ops.run(Op.ALLREDUCE, "here and there", tensors, keep=memory, gpu=gpu)  # the job continues
        fake_gpus.synchronize(stream)
        assert memory.array.tolist() == [2.0] * 5
        return error_text

    for error_text in pools(2, "nccl").run(check):
        assert "GPU" in error_text and "rank 0" in error_text and "rank 1" in error_text


def test_a_plan_takes_another_stream_each_time(pools: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import ops
        from tests import fake_gpus

        plan = ops.plan(Op.ALLREDUCE, "planned", [(DType.FLOAT32, (100,))], device=rank)
        for turn in range(6):
            stream = fake_gpus.new_stream()
            memory = fake_gpus.Memory((100,), numpy.float32)
            source = fake_gpus.on_gpu(numpy.full(100, turn + rank, numpy.float32))
            fake_gpus.cuda().fake_cuda_delay(stream, 500)
            fake_gpus.copy(memory, source, stream)
            handle = plan.submit([memory.address], [memory.address], (memory, source), stream=stream)
            handle.await_on(stream)
            handle.await_on(stream)  # again, on the same
            with pytest.raises(RuntimeError, match="on another stream"):
                handle.await_on(fake_gpus.new_stream())
            fake_gpus.synchronize(stream)
            assert (memory.array == 2 * turn + 1).all()

    pools(2, "nccl").run(check)
