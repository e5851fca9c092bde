"""Random programs of collectives on real processes, against NumPy.

Every example runs on ranks that live as long as the module. SPARK_ESTIMATOR_TEST_EXAMPLES=1000 looks longer, and
SPARK_ESTIMATOR_TEST_SHRINK=1 has a failure reduced to the smallest program, which takes its time when that hangs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spark_estimator._native import DType, Op, ReduceOp
from spark_estimator.collectives import ops
from tests.rank_pool import RankPool
from tests.scenarios.collectives.programs import FLOATS, UNSIGNED, Shape, Step

EXAMPLES = int(os.environ.get("SPARK_ESTIMATOR_TEST_EXAMPLES", "12"))
quickly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    phases=[Phase.generate] + [Phase.shrink] * (os.environ.get("SPARK_ESTIMATOR_TEST_SHRINK") == "1"),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
HANGS = 20  # seconds that an example of a few milliseconds may take
SIZES = [2, 3, 5]
# Process sets that overlap, that do not, and one of a single rank.
GROUPS: dict[int, list[tuple[int, ...]]] = {
    2: [(0, 1), (1,)],
    3: [(0, 1, 2), (0, 2), (1, 2), (0,)],
    5: [(0, 1, 2, 3, 4), (0, 1), (2, 3, 4), (0, 2, 4), (1, 3)],
}


def call_in_a_job_that_goes_on(function: Callable[..., Any], rank: int, *args: Any) -> Any:
    from spark_estimator.collectives import context

    context.init(process_sets="dynamic")
    return function(rank, *args)


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[[int], RankPool]]:
    made: dict[int, RankPool] = {}

    def get(size: int) -> RankPool:
        if size not in made or not made[size].usable:
            if size in made:
                made[size].close()
            made[size] = RankPool(size, call_in_a_job_that_goes_on, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"})
            made[size].run(add_sets, GROUPS[size])
        return made[size]

    yield get
    for pool in made.values():
        pool.close()


def add_sets(rank: int, groups: list[tuple[int, ...]]) -> None:
    from tests.scenarios.collectives import programs

    programs.added = programs.sets_of(groups)  # type: ignore[attr-defined]


# --- strategies ------------------------------------------------------------------------------------------------------

lengths = st.one_of(st.integers(0, 5), st.integers(0, 5), st.integers(0, 400))
# One dimension may be long: enough for many chunks of the pipelines, and not for a program to take seconds.
shapes: st.SearchStrategy[Shape] = st.builds(
    lambda short, long, at: (*short[:at], *long, *short[at:]),
    st.lists(st.integers(0, 4), max_size=2),
    st.lists(st.one_of(st.integers(0, 400), st.integers(0, 20_000)), max_size=1),
    st.integers(0, 2),
)
rows_of_shapes: st.SearchStrategy[Shape] = st.lists(st.integers(1, 5), max_size=2).map(tuple)
names = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=12)
dtypes = st.sampled_from(list(DType))
factors = st.sampled_from([1.0, 1.0, 0.5, 2.0, -1.0])


@st.composite
def steps(draw: st.DrawFn, groups: list[tuple[int, ...]], name: str) -> Step:
    ranks = draw(st.sampled_from(groups))
    op = draw(st.sampled_from([op for op in Op if op is not Op.JOIN]))
    seed = draw(st.integers(0, 2**32 - 1))
    unnamed = draw(st.booleans())
    if unnamed:
        name = ops.kind_of_unnamed(draw(st.sampled_from(["one kind", "another"])))
    if op is Op.BARRIER:
        return Step(op, name, ranks, unnamed=unnamed, seed=seed)
    tensors = 1 if op in (Op.BROADCAST, Op.ALLTOALL) else draw(st.sampled_from([1, 1, 2, 4]))
    types = tuple(draw(dtypes) for _ in range(tensors))
    common: dict[str, Any] = {
        "op": op,
        "name": name,
        "ranks": ranks,
        "dtypes": types,
        "unnamed": unnamed,
        "seed": seed,
    }
    if op is Op.ALLGATHER:
        rows = tuple(tuple(draw(lengths) for _ in ranks) for _ in types)
        return Step(shapes=tuple(draw(rows_of_shapes) for _ in types), rows=rows, **common)
    if op is Op.ALLTOALL:
        splits = tuple(tuple(draw(lengths) for _ in ranks) for _ in ranks)
        return Step(shapes=(draw(rows_of_shapes),), splits=splits, **common)
    if op is Op.BROADCAST:
        root = draw(st.integers(0, len(ranks) - 1))
        return Step(shapes=(draw(shapes),), root=root, in_place=draw(st.booleans()), **common)
    some = shapes if op is Op.ALLREDUCE else st.builds(lambda rows, rest: (rows, *rest), lengths, rows_of_shapes)
    reduce_ops = [ReduceOp.AVERAGE, ReduceOp.SUM]
    if op is Op.ALLREDUCE:
        reduce_ops += [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]
    reduce_op = draw(
        st.sampled_from([each for each in reduce_ops if each is not ReduceOp.AVERAGE or DType.BOOL not in types])
    )
    # Horovod does not define where an integer's scaled average is truncated; unsigned types have no negatives.
    scalable = all(each in FLOATS for each in types) or (reduce_op is ReduceOp.SUM and DType.BOOL not in types)
    scales = [draw(factors) if scalable else 1.0 for _ in range(2)]
    if UNSIGNED.intersection(types):
        scales = [abs(scale) for scale in scales]
    return Step(
        shapes=tuple(draw(some) for _ in types),
        reduce_op=reduce_op,
        prescale=scales[0],
        postscale=scales[1],
        in_place=draw(st.booleans()),
        **common,
    )


@st.composite
def programs_of(draw: st.DrawFn, groups: list[tuple[int, ...]], most: int) -> list[Step]:
    chosen = draw(st.lists(names, min_size=1, max_size=most, unique=True))
    return [draw(steps(groups, name)) for name in chosen]


# --- what must hold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@quickly
@given(data=st.data())
def test_any_order_of_submission_gives_numpys_numbers(
    size: int, data: st.DataObject, pools: Callable[[int], RankPool]
) -> None:
    program = data.draw(programs_of(GROUPS[size], 15))
    pools(size).run(in_any_order, program, data.draw(st.integers(0, 1000)), timeout=HANGS)


def in_any_order(rank: int, program: list[Step], order_seed: int) -> None:
    from tests.scenarios.collectives import programs

    programs.run_in_orders_of_their_own(rank, program, programs.added, order_seed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", SIZES)
@quickly
@given(data=st.data())
def test_names_that_come_again_and_again_give_numpys_numbers(
    size: int, data: st.DataObject, pools: Callable[[int], RankPool]
) -> None:
    program = data.draw(programs_of(GROUPS[size], 6))
    pools(size).run(again_and_again, program, timeout=HANGS)


def again_and_again(rank: int, program: list[Step]) -> None:
    from tests.scenarios.collectives import programs

    programs.run_one_after_another(rank, program, programs.added, times=4)  # type: ignore[attr-defined]


DIFFERENCES = ["op", "dtypes", "shapes", "reduce_op", "prescale", "postscale", "root", "tensors"]


@st.composite
def contradictions(draw: st.DrawFn, size: int) -> tuple[Step, Step, list[str]]:
    """Two contradicting steps under one name, and what an error about them must quote."""
    what = draw(st.sampled_from(DIFFERENCES))
    name = draw(names)
    unnamed = draw(st.booleans())
    common: dict[str, Any] = {
        "name": ops.kind_of_unnamed(name) if unnamed else name,
        "ranks": tuple(range(size)),
        "unnamed": unnamed,
    }
    dtype, other_dtype = draw(st.lists(st.sampled_from(FLOATS), min_size=2, max_size=2, unique=True))
    length, other_length = draw(st.lists(st.integers(1, 3000), min_size=2, max_size=2, unique=True))
    first: dict[str, Any] = {"op": Op.ALLREDUCE, "dtypes": (dtype,), "shapes": ((length,),)}
    second = dict(first)
    if what == "op":
        first["op"], second["op"] = draw(
            st.lists(
                st.sampled_from([Op.ALLREDUCE, Op.BROADCAST, Op.REDUCESCATTER]), min_size=2, max_size=2, unique=True
            )
        )
        quoted = [first["op"].name.lower(), second["op"].name.lower()]
    elif what == "dtypes":
        second["dtypes"] = (other_dtype,)
        quoted = [dtype.name.lower(), other_dtype.name.lower()]
    elif what == "shapes":
        second["shapes"] = ((other_length,),)
        quoted = [str(length), str(other_length)]
    elif what == "reduce_op":
        first["reduce_op"], second["reduce_op"] = draw(
            st.lists(
                st.sampled_from([op for op in ReduceOp if op is not ReduceOp.ADASUM]),
                min_size=2,
                max_size=2,
                unique=True,
            )
        )
        quoted = [first["reduce_op"].name.lower(), second["reduce_op"].name.lower()]
    elif what in ("prescale", "postscale"):
        first[what], second[what] = draw(
            st.lists(st.sampled_from([0.5, 0.25, 1.0, -3.0]), min_size=2, max_size=2, unique=True)
        )
        quoted = [what, f"{first[what]:g}", f"{second[what]:g}"]
    elif what == "root":
        first["op"] = second["op"] = Op.BROADCAST
        first["root"], second["root"] = draw(st.permutations(range(size)))[:2]
        quoted = ["root", str(first["root"]), str(second["root"])]
    else:
        second["dtypes"], second["shapes"] = (dtype, dtype), ((length,), (length,))
        quoted = ["1", "2"]
    return Step(**common, **first), Step(**common, **second), quoted


@pytest.mark.parametrize("size", SIZES)
@quickly
@given(data=st.data())
def test_every_contradiction_is_told_to_all_and_does_no_harm(
    size: int, data: st.DataObject, pools: Callable[[int], RankPool]
) -> None:
    agreed, deviating, quoted = data.draw(contradictions(size))
    deviates = data.draw(st.integers(0, size - 1))
    known = data.draw(st.booleans())
    messages = pools(size).run(
        contradict, [deviating if rank == deviates else agreed for rank in range(size)], known, timeout=HANGS
    )
    assert len(set(messages)) == 1
    for words in quoted:
        assert words in messages[0].lower()
    assert f"rank {deviates}" in messages[0].lower() or f" {deviates}" in messages[0]


def contradict(rank: int, mine: list[Step], known: bool) -> str:
    import pytest

    from spark_estimator.collectives import context
    from spark_estimator.errors import MismatchError
    from tests.scenarios.collectives.programs import Running, usable

    if known:  # all have agreed on this name before
        for _ in range(3):
            running = Running(mine[0], None)
            running.run()
            running.check()
    with pytest.raises(MismatchError) as raised:
        Running(mine[rank], None).run()
    usable(context.size())
    running = Running(mine[0], None)
    running.run()
    running.check()
    return str(raised.value)


@pytest.mark.parametrize("size", SIZES)
@quickly
@given(data=st.data())
def test_who_has_joined_takes_part_with_zeros(size: int, data: st.DataObject, pools: Callable[[int], RankPool]) -> None:
    counts = data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size))
    lasts = pools(size).run(until_all_have_joined, counts, data.draw(st.integers(1, 5000)), timeout=HANGS)
    assert len(set(lasts)) == 1
    # The last to join is one of those that had most to do.
    assert counts[lasts[0]] == max(counts)


def until_all_have_joined(rank: int, counts: list[int], length: int) -> int:
    import numpy

    from spark_estimator.collectives import arrays, context

    for number in range(counts[rank]):
        total = arrays.allreduce(numpy.full(length, rank + 1, numpy.float32), arrays.ReduceOp.SUM)
        right = sum(other + 1 for other, count in enumerate(counts) if count > number)
        assert (total == right).all(), (number, total, right)
    last = arrays.join()
    # Calls without a name match again, though the ranks have made different numbers of them.
    assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == context.size()).all()
    return last
