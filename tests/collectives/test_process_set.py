"""Process sets: adding, removing, asking, and collectives in several of them at once."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
both_channels = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared", "tcp"])


@both_channels
def test_static_sets(shared: str) -> None:
    def static(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context, objects, ops
        from spark_estimator.collectives.process_set import ProcessSet, global_process_set

        even, pair, unused = ProcessSet([2, 0]), ProcessSet(range(1, 3)), ProcessSet([1])
        assert (even.process_set_id, even.size(), even.rank()) == (None,) * 3
        with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
            even.included()
        for _ in range(2):
            context.init(process_sets=[even, pair])
            assert str(even) == "ProcessSet(process_set_id=1, ranks=[0, 2], mpi_comm=None)"
            assert (pair.process_set_id, pair.ranks, pair.size()) == (2, [1, 2], 2)
            assert even.included() is (rank in (0, 2))
            assert global_process_set.process_set_id == 0
            assert (global_process_set.rank(), global_process_set.size()) == (rank, 3)
            assert global_process_set.included()
            assert global_process_set.ranks == [0, 1, 2]
            assert context.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2], 2: [1, 2]}
            for process_set in (even, pair, global_process_set):
                if not process_set.included():
                    with pytest.raises(ValueError, match=f"rank {rank} is not in ProcessSet"):
                        process_set.rank()
                    with pytest.raises(ValueError, match=f"rank {rank} is not in ProcessSet"):
                        arrays.allreduce(numpy.ones(3), process_set=process_set)
                    continue
                assert process_set.rank() == process_set.ranks.index(rank)
                array = numpy.full(1000, rank, numpy.int64)
                total = sum(process_set.ranks)
                for name in (None, "named", "named", "named", "named"):
                    got = arrays.allreduce(array, arrays.ReduceOp.SUM, name, process_set=process_set)
                    assert (got == total).all()
                assert arrays.allgather(array[:1], process_set=process_set).tolist() == process_set.ranks
                for root in process_set.ranks:
                    assert (arrays.broadcast(array, root, process_set=process_set) == root).all()
                    assert objects.broadcast_object(rank, root, process_set=process_set) == root
                with pytest.raises(ValueError, match="root_rank="):
                    arrays.broadcast(array, ({0, 1, 2, 3} - set(process_set.ranks)).pop(), process_set=process_set)
                assert objects.allgather_object(rank, process_set=process_set) == process_set.ranks
                ops.barrier(process_set)
            with pytest.raises(ValueError, match="is not registered"):
                arrays.allreduce(numpy.ones(3), process_set=unused)
            with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
                context.add_process_set(unused)
            with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
                context.remove_process_set(even)
            # Without the others, as in Horovod.
            assert unused.included() is (rank == 1)
            assert rank or not context.remove_process_set(unused)
            assert rank or not context.remove_process_set(global_process_set)
            context.shutdown()
            # They can be registered again.
            assert (even.process_set_id, even.size(), even.rank()) == (None,) * 3
            with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
                global_process_set.size()

    run_ranks(3, static, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


def test_adding_and_removing() -> None:
    def dynamic(rank: int) -> None:
        import os
        import threading

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.collectives.process_set import ProcessSet, global_process_set

        def open_files() -> int:
            return len(os.listdir("/proc/self/fd"))

        context.init(process_sets="dynamic")
        files = threads = 0
        for round_ in range(12):
            added = [context.add_process_set([1, 0]), context.add_process_set(ProcessSet([1, 2]))]
            assert [each.process_set_id for each in added] == [2 * round_ + 1, 2 * round_ + 2]
            for each in added:
                if each.included():
                    got = arrays.allreduce(numpy.ones(round_ + 1), arrays.ReduceOp.SUM, "same name", process_set=each)
                    assert (got == 2).all()
            # In another order, and beside a set that remains.
            for each in added if round_ % 2 else reversed(added):
                assert context.remove_process_set(each) is True
                assert each.process_set_id is None
                assert context.remove_process_set(each) is False
                with pytest.raises(ValueError, match="is not registered"):
                    arrays.allreduce(numpy.ones(1), process_set=each)
            assert context.remove_process_set(global_process_set) is False
            assert context.get_process_set_ids_and_ranks() == {0: [0, 1, 2]}
            assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 3).all()
            if round_ == 2:
                files, threads = open_files(), threading.active_count()
        assert open_files() <= files + 4
        assert threading.active_count() <= threads + 1

    run_ranks(3, dynamic, environ={})


def test_the_variable_allows_it_as_well() -> None:
    def dynamic(rank: int) -> int | None:
        from spark_estimator.collectives import context

        context.init()
        return context.add_process_set([0]).size()

    assert run_ranks(2, dynamic, environ=DYNAMIC) == [1, 1]


def test_a_framework_makes_groups_beside_the_sets() -> None:
    def check(rank: int) -> None:
        from datetime import timedelta

        import pytest

        from spark_estimator.collectives import context, ops
        from spark_estimator.collectives.requests import gather_bytes
        from spark_estimator.errors import MismatchError

        context.init()  # not dynamic: that is what users are asked
        for _ in range(2):
            pair = context.make_group([2, 0], "make")
            assert (pair is None) == (rank == 1)
            if pair is not None:
                assert pair.ranks == (0, 2)
                assert [bytes(each) for each in gather_bytes(pair, "names", b"%d" % rank)] == [b"0", b"2"]
                context.end_group(pair)
                context.end_group(pair)
        assert context.make_group(range(3), "make") is context.engine()
        assert context.get_process_set_ids_and_ranks() == {0: [0, 1, 2]}
        with pytest.raises(ValueError, match=r"make on every rank: ranks .* contain a rank twice"):
            context.make_group([1, 1], "make")
        with pytest.raises(ValueError, match="make on rank 1: it is full"):
            context.make_group([1], "make", "it is full" if rank == 1 else "")
        message = r"rank 0 called make\(\[0, 1\]\), ranks 1, 2 called make\(\[1, 2\]\)"
        with pytest.raises(MismatchError, match=message):
            context.make_group([1, 2] if rank else [0, 1], "make")
        with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
            context.add_process_set([1])
        if rank == 0:
            with pytest.raises(TimeoutError):
                context.make_group([0], "make", timeout=timedelta(seconds=0.1))
        ops.barrier()

    run_ranks(3, check)


def test_what_makes_no_set_is_refused_on_all_ranks() -> None:
    def refused(rank: int) -> list[str]:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.collectives.process_set import ProcessSet

        context.init(process_sets="dynamic")
        first = context.add_process_set([0, 1])
        errors = []
        for ranks in ([1, 0], range(3), [0, 3], [-1], [], [1, 1, 2], first):
            with pytest.raises(ValueError, match="process") as raised:
                context.add_process_set(ranks)
            errors.append(str(raised.value))
        # A mistake of one rank alone is reported to all.
        with pytest.raises(ValueError, match="process") as raised:
            context.add_process_set([7] if rank == 1 else [1, 2])
        errors.append(str(raised.value))
        for wrong in ([0.5], "ab", None, [None], [True]):
            with pytest.raises(ValueError, match="pass a list of ranks"):
                ProcessSet(wrong)
        assert context.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 1]}
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 3).all()
        assert context.add_process_set([1, 2]).process_set_id == 2
        return errors

    results = run_ranks(3, refused)
    assert results[0] == results[1] == results[2]
    for text, expected in zip(
        results[0],
        [
            "the ranks [0, 1] already exists, with the id 1",
            "the ranks [0, 1, 2] already exists, with the id 0",
            "ranks must be among those of the job, 0 to 2: [0, 3]",
            "among those of the job, 0 to 2: [-1]",
            "at least one rank",
            "ranks [1, 1, 2] contain a rank twice",
            "is already registered",
            "on rank 1: ranks must be among those of the job, 0 to 2: [7]",
        ],
        strict=True,
    ):
        assert expected in text


def test_ranks_that_disagree_are_told_both_values() -> None:
    def disagree(rank: int) -> list[str]:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import MismatchError

        context.init(process_sets="dynamic")
        known = context.add_process_set([0, 2])
        errors = []
        for mine, theirs in [
            (lambda: context.add_process_set([0, 1]), lambda: context.add_process_set([1, 2])),
            (lambda: context.add_process_set([0, 1]), lambda: context.remove_process_set(known)),
        ]:
            with pytest.raises(MismatchError) as raised:
                (theirs if rank == 2 else mine)()
            errors.append(str(raised.value))
        assert context.get_process_set_ids_and_ranks() == {0: [0, 1, 2], 1: [0, 2]}
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 3).all()
        return errors

    for errors in run_ranks(3, disagree):
        assert "ranks 0, 1 called add_process_set([0, 1]), rank 2 called add_process_set([1, 2])" in errors[0]
        assert "rank 2 called remove_process_set of the set with id 1" in errors[1]


@pytest.mark.parametrize(
    ("of_rank_0", "of_rank_1", "expected"),
    [
        ([[0]], [[1]], "rank 0 called init(process_sets=[[0]]) .* rank 1 called init(process_sets=[[1]])"),
        ([[0]], None, "rank 1 called init(process_sets=[])"),
        ("dynamic", None, "HOROVOD_DYNAMIC_PROCESS_SETS=1, rank 1 called .*HOROVOD_DYNAMIC_PROCESS_SETS=0"),
        ([[0], [1], [0]], [[0], [1], [0]], "the ranks [0] already exists, with the id 1"),
        ([[0], [5]], [[0], [5]], "ranks must be among those of the job, 0 to 1: [5]"),
    ],
)
def test_init_fails_on_all_ranks_or_none(of_rank_0: object, of_rank_1: object, expected: str) -> None:
    def joins(rank: int, sets: list[object]) -> tuple[str, str]:
        import numpy

        from spark_estimator.collectives import arrays, context

        try:
            context.init(process_sets=sets[rank])
        except Exception as error:
            assert not context.is_initialized()
            # It can be made again, without them.
            context.init()
            assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 2).all()
            return type(error).__name__, str(error)
        return "", ""

    import re

    pattern = re.escape(expected).replace(r"\.\*", ".*")
    for kind, text in run_ranks(2, joins, args=([of_rank_0, of_rank_1],)):
        assert kind == (
            "ValueError" if "already" in expected or "among those of the job" in expected else "MismatchError"
        )
        assert re.search(pattern, text), text


@both_channels
def test_sets_run_at_the_same_time_from_different_threads(shared: str) -> None:
    def threads(rank: int) -> None:
        import threading
        from concurrent.futures import ThreadPoolExecutor

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init(process_sets="dynamic")
        sets = [context.add_process_set(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 2, 3])]
        mine = [each for each in sets if each.included()] + [None]
        together = threading.Barrier(len(mine))

        def work(process_set: object) -> None:
            members = range(4) if process_set is None else process_set.ranks  # type: ignore[attr-defined]
            together.wait(60)
            for number in range(60):
                array = numpy.full(1 + number * 97, rank, numpy.float32)
                name = None if number % 3 else f"again {number % 2}"
                got = arrays.allreduce(array, arrays.ReduceOp.SUM, name, process_set=process_set)
                assert (got == sum(members)).all()

        with ThreadPoolExecutor(len(mine)) as pool:
            list(pool.map(work, mine))

    run_ranks(4, threads, environ={"SPARK_ESTIMATOR_SHARED_MEMORY": shared})


def test_a_set_does_not_wait_for_those_outside_it() -> None:
    def waits(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init(process_sets="dynamic")
        pair = context.add_process_set([0, 1])
        if rank == 2:
            # Rank 2 joins only when the pair has ended, as it must not be needed.
            arrays.allreduce(numpy.ones(1), name="afterwards")
            return
        for number in range(20):
            assert (arrays.allreduce(numpy.ones(5), arrays.ReduceOp.SUM, process_set=pair) == 2).all(), number
        arrays.allreduce(numpy.ones(1), name="afterwards")

    run_ranks(3, waits)


def test_messages_call_ranks_as_the_job_does() -> None:
    def mismatch(rank: int) -> str:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import MismatchError

        context.init(process_sets="dynamic")
        pair = context.add_process_set([1, 2])
        if rank == 0:
            return ""
        with pytest.raises(MismatchError) as raised:
            arrays.allreduce(numpy.ones(rank), name="differs", process_set=pair)
        assert (arrays.allreduce(numpy.ones(4), arrays.ReduceOp.SUM, process_set=pair) == 2).all()
        return str(raised.value)

    _, first, second = run_ranks(3, mismatch)
    assert first == second
    assert "rank 1" in first.lower()
    assert "rank 2" in first.lower()
    assert "rank 0" not in first.lower()


def test_a_rank_that_dies_is_named_in_its_sets() -> None:
    def dies(rank: int) -> str:
        import os
        import signal
        import time

        import numpy

        from spark_estimator.collectives import arrays, context, ops
        from spark_estimator.errors import PeerLostError

        context.init(process_sets="dynamic")
        pair = context.add_process_set([1, 2])
        ops.barrier()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for number in range(1000):
                arrays.allreduce(numpy.ones(3), name=f"sum {number}", process_set=pair if rank == 1 else None)
        except PeerLostError as error:
            if rank == 1:
                time.sleep(1)  # so that rank 0 detects the first that leaves, and not this one
            return str(error)
        return "went on"

    from tests.ranks import start_ranks

    with start_ranks(3, dies) as ranks:
        outcomes = ranks.wait()
    for outcome in outcomes[:2]:
        assert outcome.returned, outcome
        assert "rank 2" in outcome.value


def test_removal_ends_what_is_pending_in_good_order() -> None:
    def pending(rank: int) -> None:
        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import ShutDownError

        context.init(process_sets="dynamic")
        pair = context.add_process_set([0, 1])
        array = numpy.ones(3)
        handle = None
        if rank == 0:
            handle = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "alone", process_set=pair)
        assert context.remove_process_set(pair)
        if handle is not None:
            with pytest.raises(ShutDownError):
                handle.wait()
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 3).all()

    run_ranks(3, pending)


def test_a_forked_child_cannot_use_them_either() -> None:
    def forks(rank: int) -> None:
        import contextlib
        import os

        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import HorovodInternalError

        context.init(process_sets="dynamic")
        both = context.add_process_set([0])
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                assert both.size() == 1
                if rank == 0:
                    try:
                        arrays.allreduce(numpy.ones(1), process_set=both)
                    except HorovodInternalError as error:
                        assert "was forked from a rank" in str(error)
                for fd in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(FileNotFoundError):
                        assert not os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "/memfd:"))
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 2).all()

    run_ranks(2, forks)
