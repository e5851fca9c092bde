"""Ranks that die: the others get an error soon, in every op that waits, with the rank's number."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.ranks import RanksFailedError, run_ranks, start_ranks

both_channels = pytest.mark.parametrize(
    "environ",
    [{"SPARK_ESTIMATOR_SHARED_MEMORY": "1"}, {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"}],
    ids=["shared", "tcp"],
)


def wait_for_a_dead_rank(rank: int, dies: int) -> list[str]:
    """All ranks but one submit several collectives; that one kills itself. Gives what each collective ended in."""
    import os
    import signal
    import time

    import numpy

    from spark_estimator._native import DType, Op
    from spark_estimator.collectives import arrays, context, ops
    from spark_estimator.errors import PeerLostError

    context.init()
    ops.barrier()
    if rank == dies:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    array = numpy.ones(1000)
    tensor = ops.Tensor(array.ctypes.data, array.ctypes.data, DType.FLOAT64, array.shape)
    rows = tensor._replace(output=0)
    pending = [arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, f"sum {number}") for number in range(20)]
    pending += [ops.submit(Op.BROADCAST, "broadcast", [tensor], root_rank=dies, keep=array)]
    pending += [ops.submit(Op.ALLGATHER, "gather", [rows], keep=array)]
    pending += [ops.submit(Op.BARRIER, "barrier", [])]
    messages = []
    for handle in pending:
        try:
            handle.wait()
        except PeerLostError as error:
            messages.append(str(error))
    try:
        arrays.allreduce(array)
    except PeerLostError as error:
        messages.append(str(error))
    context.shutdown()
    assert not context.is_initialized()
    return messages


@both_channels
@pytest.mark.parametrize(("n", "dies"), [(2, 1), (2, 0), (3, 1), (4, 0)])
def test_every_op_that_waits_for_a_killed_rank_names_it(n: int, dies: int, environ: dict[str, str]) -> None:
    # No silence is noticed during this test: the death is, by the end of a connection.
    environ = {**environ, "SPARK_ESTIMATOR_SILENCE_SECONDS": "3600"}
    with start_ranks(n, wait_for_a_dead_rank, args=(dies,), environ=environ) as ranks:
        outcomes = ranks.wait(timeout=60)
    assert outcomes[dies].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != dies:
            assert outcome.returned, outcome
            assert len(outcome.value) == 24
            for message in outcome.value:
                assert f"rank {dies}" in message
                assert re.search(r"its connection (ended, as its process has died|broke \(its process died\))", message)


def allreduce_for_ever(rank: int) -> str:
    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.errors import PeerLostError

    context.init()
    array = numpy.ones(16_000_000, numpy.float32)
    print("begins", flush=True)
    try:
        for _ in range(1_000_000):
            arrays.allreduce_into(array, array, arrays.ReduceOp.MAX, "large").wait()
    except PeerLostError as error:
        return str(error)
    return "went on"


@both_channels
def test_a_rank_killed_while_bytes_flow(environ: dict[str, str]) -> None:
    for n, dies in ((2, 0), (3, 1)):
        patient = {**environ, "SPARK_ESTIMATOR_SILENCE_SECONDS": "3600"}  # the death itself is noticed
        with start_ranks(n, allreduce_for_ever, environ=patient) as ranks:
            for rank in range(n):
                ranks.await_output(rank, "begins")
            ranks.kill(dies)
            outcomes = ranks.wait(timeout=60)
        for outcome in outcomes:
            if outcome.rank != dies:
                assert outcome.returned, outcome
                assert f"rank {dies}" in outcome.value


@both_channels
def test_a_death_is_reported_at_once(environ: dict[str, str]) -> None:
    """Within a number of naps of the rank itself, which on a slow machine take longer, as all that it does."""

    def nap_until_the_report(rank: int) -> tuple[int, str]:
        import os
        import select
        import threading
        import time

        import numpy

        from spark_estimator.collectives import arrays, context, objects
        from spark_estimator.errors import PeerLostError

        context.init()
        victim = os.pidfd_open(objects.allgather_object(os.getpid())[1])
        if rank == 1:
            time.sleep(1000)
        naps, reported = 0, threading.Event()

        def nap() -> None:
            nonlocal naps
            select.select([victim], [], [])  # its end; the kernel has closed its connections by then
            while not reported.is_set():
                time.sleep(0.1)
                naps += 1

        thread = threading.Thread(target=nap)
        thread.start()
        print("waits", flush=True)
        try:
            arrays.allreduce(numpy.ones(1000))
        except PeerLostError as error:
            return naps, str(error)
        finally:
            reported.set()
            thread.join()
        return naps, "went on"

    with start_ranks(2, nap_until_the_report, environ=environ) as ranks:
        ranks.await_output(0, "waits")
        ranks.kill(1, signal.SIGKILL)
        outcome = ranks.wait(timeout=60)[0]
    assert outcome.returned, outcome
    naps, message = outcome.value
    assert "rank 1" in message and naps < 20, (naps, message)


@both_channels
def test_a_paused_rank_is_no_dead_rank(environ: dict[str, str]) -> None:
    def slow(rank: int) -> float:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        total = numpy.zeros(100_000)
        print("begins", flush=True)
        for _ in range(300):
            total += arrays.allreduce(numpy.ones(100_000), arrays.ReduceOp.SUM)
        return float(total[0])

    with start_ranks(2, slow, environ=environ) as ranks:
        for rank in range(2):
            ranks.await_output(rank, "begins")
        ranks.kill(1, signal.SIGSTOP)
        time.sleep(3)
        ranks.kill(1, signal.SIGCONT)
        outcomes = ranks.wait(timeout=60)
    assert [outcome.value for outcome in outcomes] == [600.0, 600.0], outcomes


def broadcast_and_leave(rank: int, begin: str) -> str:
    """Rank 0 gives its part of a broadcast once the file `begin` exists, and leaves. Rank 3 has its own from rank 2."""
    import time
    from pathlib import Path

    import numpy

    from spark_estimator._native import DType, Op
    from spark_estimator.collectives import context, ops
    from spark_estimator.errors import PeerLostError

    context.init()
    ops.barrier()
    engine = context.engine()
    array = numpy.full(8192, float(rank), numpy.float32)
    tensor = ops.Tensor(array.ctypes.data, array.ctypes.data, DType.FLOAT32, array.shape)
    while rank == 0 and not Path(begin).exists():
        time.sleep(0.01)
    negotiations = engine.read_counter("slow_phases")
    pending = ops.submit(Op.BROADCAST, "tree", [tensor], root_rank=0, keep=array)
    if rank != 0:
        # The engine's thread sends the request after it has counted the negotiation, and counts the bytes after that.
        while engine.read_counter("slow_phases") == negotiations:
            time.sleep(0.01)
        sent = engine.read_counter("control_bytes_sent")
        while engine.read_counter("control_bytes_sent") == sent:
            time.sleep(0.01)
        print("has asked", flush=True)
    try:
        pending.wait()
    except PeerLostError as error:
        return str(error)
    finally:
        context.shutdown()
    assert (array == 0).all()
    return "done"


def test_a_rank_that_freezes_after_another_has_left_is_named(tmp_path: Path) -> None:
    environ = {
        "SPARK_ESTIMATOR_SHARED_MEMORY": "0",
        "SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.2",
        "SPARK_ESTIMATOR_SILENCE_SECONDS": "3",
    }
    begin = tmp_path / "begin"
    with start_ranks(4, broadcast_and_leave, args=(str(begin),), environ=environ) as ranks:
        for rank in (1, 2, 3):
            ranks.await_output(rank, "has asked")
        ranks.kill(2, signal.SIGSTOP)
        begin.touch()
        ranks.await_end(3)
        ranks.kill(2)
        outcomes = ranks.wait(timeout=60)
    assert [outcomes[0].value, outcomes[1].value] == ["done", "done"], outcomes
    assert "rank 2" in outcomes[3].value, outcomes[3]
    assert "no heartbeat" in outcomes[3].value, outcomes[3]


@both_channels
def test_a_rank_that_stays_while_others_leave_or_freeze_sleeps(environ: dict[str, str]) -> None:
    def stay(rank: int) -> tuple[float, int]:
        import time

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context, ops
        from spark_estimator.errors import ShutDownError

        context.init()
        ops.barrier()
        if rank == 0:
            context.shutdown()
            return 0.0, 0
        print("begins", flush=True)
        if rank == 1:
            time.sleep(1000)
        with pytest.raises(ShutDownError):
            arrays.allreduce(numpy.ones(3))
        engine = context.engine()
        time.sleep(2)  # longer than the silence
        wakeups, busy = engine.read_counter("wakeups"), time.process_time()
        time.sleep(1)
        return time.process_time() - busy, engine.read_counter("wakeups") - wakeups

    limits = {"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.2", "SPARK_ESTIMATOR_SILENCE_SECONDS": "1"}
    with start_ranks(3, stay, environ={**environ, **limits}) as ranks:
        ranks.await_output(1, "begins")
        ranks.kill(1, signal.SIGSTOP)
        ranks.await_end(2)
        ranks.kill(1)
        outcomes = ranks.wait(timeout=60)
    assert outcomes[2].returned, outcomes[2]
    processor_seconds, wakeups = outcomes[2].value
    assert processor_seconds < 0.5  # a spinning thread takes all of the second
    assert wakeups < 1000


@both_channels
def test_a_rank_without_memory_says_so_to_all(environ: dict[str, str]) -> None:
    def gather(rank: int) -> list[str]:
        import resource
        from pathlib import Path

        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import PeerLostError

        context.init()
        values = numpy.ones(1 << 28 if rank == 0 else 1, numpy.uint8)
        assert len(arrays.allgather(values[:1000])) == 1001
        if rank == 1:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (64 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        expected = MemoryError if rank == 1 else PeerLostError
        messages = []
        for name in ("gather", "again"):
            try:
                arrays.allgather(values, name)
            except expected as error:
                messages.append(str(error))
        context.shutdown()
        assert not context.is_initialized()
        return messages

    for messages in run_ranks(2, gather, environ=environ):
        assert len(messages) == 2
        for message in messages:
            assert "rank 1" in message
            assert "could not allocate" in message
            assert "memory" in message


def test_an_exception_on_one_rank_reaches_the_others_as_its_leaving() -> None:
    def raises(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        if rank == 1:
            raise KeyError("a mistake of the user")
        arrays.allreduce(numpy.ones(1))

    with pytest.raises(RanksFailedError) as raised:
        run_ranks(2, raises)
    first, second = raised.value.outcomes
    assert "KeyError: 'a mistake of the user'" in second.trace
    assert "ShutDownError" in first.trace
    assert "rank 1" in str(first.error)


def test_a_job_can_be_had_again_after_a_rank_was_lost() -> None:
    """The survivors cannot, without it; but the process itself is whole: it may leave."""

    def survive(rank: int) -> list[str]:
        import os
        import signal

        import numpy

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import PeerLostError

        kinds = []
        context.init()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(2):
            try:
                context.init()
                arrays.allreduce(numpy.ones(1))
            except PeerLostError as error:
                kinds.append(str(error))
            context.shutdown()
        return kinds

    with start_ranks(2, survive) as ranks:
        outcomes = ranks.wait()
    assert len(outcomes[0].value) == 2, outcomes[0]
    assert all("rank 1" in message for message in outcomes[0].value)
    assert "its process has ended" in outcomes[0].value[1]


# --- forks -----------------------------------------------------------------------------------------------------------


def test_a_forked_child_cannot_use_the_job_and_harms_nothing() -> None:
    def forks(rank: int) -> list[str]:
        import contextlib
        import os

        import numpy

        from spark_estimator.collectives import arrays, context, objects, ops
        from spark_estimator.errors import HorovodInternalError

        context.init()
        array = numpy.ones(10)
        pending = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "pending") if rank == 0 else None
        errors = []
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # rank() and size() stay valid: data loaders call them.
                assert (context.rank(), context.size(), context.is_initialized()) == (rank, 2, True)
                uses = [lambda: arrays.allreduce(numpy.ones(1)), ops.barrier, lambda: objects.broadcast_object(1)]
                uses.append(context.init)
                if pending is not None:
                    uses += [pending.wait, pending.done]
                for use in uses:
                    try:
                        use()
                    except HorovodInternalError as error:
                        assert f"pid {os.getpid()}) was forked from a rank (pid {os.getppid()})" in str(error)
                    else:
                        raise AssertionError(f"{use} was possible")
                del pending
                context.shutdown()
                try:
                    context.init()
                except HorovodInternalError as error:
                    os.write(write, str(error).encode())
                for fd in os.listdir("/proc/self/fd"):
                    with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                        assert not os.readlink(f"/proc/self/fd/{fd}").startswith(("socket:", "/memfd:"))
                code = 0
            finally:
                if code:
                    import traceback

                    traceback.print_exc()
                os._exit(code)
        os.close(write)
        errors.append(os.read(read, 4096).decode())
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        # The parent, and the next round, know nothing of it.
        if pending is None:
            pending = arrays.allreduce_into(array, array, arrays.ReduceOp.SUM, "pending")
        pending.wait()
        assert (array == 2).all()
        context.shutdown()
        context.init()
        assert (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 2).all()
        return errors

    for errors in run_ranks(2, forks):
        assert "was forked from a rank" in errors[0]


def test_a_child_that_is_forked_before_init_may_be_the_rank() -> None:
    def forks(rank: int) -> int:
        import os

        import numpy

        from spark_estimator.collectives import arrays, context

        child = os.fork()
        if child == 0:
            code = 1
            try:
                context.init()
                if (arrays.allreduce(numpy.ones(3), arrays.ReduceOp.SUM) == 2).all():
                    code = 0
                context.shutdown()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run_ranks(2, forks) == [0, 0]


@both_channels
def test_a_rank_that_dies_is_missed_though_its_forked_child_lives_on(environ: dict[str, str]) -> None:
    def forks(rank: int) -> str:
        import os
        import signal
        import time

        import numpy

        from spark_estimator.collectives import arrays, context, ops
        from spark_estimator.errors import PeerLostError

        context.init()
        ops.barrier()
        if rank == 1:
            child = os.fork()
            if child == 0:
                time.sleep(100)
                os._exit(0)
            print(f"child {child}.", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            arrays.allreduce(numpy.ones(1))
        except PeerLostError as error:
            return str(error)
        return "went on"

    with start_ranks(2, forks, environ=environ) as ranks:
        ranks.await_output(1, ".")
        child = int(ranks.output(1).split("child ")[1].split(".")[0])
        try:
            outcomes = ranks.wait(timeout=60)
            os.kill(child, 0)  # it does live on
        finally:
            os.kill(child, signal.SIGKILL)
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert "rank 1" in outcomes[0].value


def test_children_of_every_kind_while_collectives_run() -> None:
    def spawns(rank: int) -> None:
        import multiprocessing
        import subprocess
        import sys
        import threading

        import numpy

        from spark_estimator.collectives import arrays, context

        listing = (
            "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
        )
        context.init()
        stop = threading.Event()

        def reduce() -> None:
            for number in range(400):
                assert (arrays.allreduce(numpy.ones(5000), arrays.ReduceOp.SUM, f"n{number}") == 2).all()
            stop.set()

        thread = threading.Thread(target=reduce)
        thread.start()
        while not stop.is_set():
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map(abs, [-1, -2]) == [1, 2]
            command = [sys.executable, "-c", listing]
            done = subprocess.run(command, capture_output=True, text=True, check=True, close_fds=False)
            assert "socket:" not in done.stdout and "memfd:" not in done.stdout, done.stdout
        thread.join()

    run_ranks(2, spawns)


def test_a_rank_without_file_descriptors_says_that_of_itself() -> None:
    def start(rank: int) -> tuple[str, int]:
        import contextlib
        import os
        import resource

        from spark_estimator.collectives import context
        from spark_estimator.errors import HorovodInternalError

        if rank == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            taken = []
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for descriptor in taken[-2:]:  # enough to listen, not enough to connect
                os.close(descriptor)
        try:
            context.init()
        except HorovodInternalError as error:
            return str(error), os.getpid()
        return "joined", os.getpid()

    (message, pid), _ = run_ranks(2, start, environ={"HOROVOD_START_TIMEOUT": "5"})
    assert message.startswith("init() on rank 0 (host ") and f", pid {pid}, address" in message
    assert "too few file descriptors (EMFILE): 2 are left of its limit of 64 (ulimit -n)" in message


def test_all_ranks_are_told_which_one_has_no_file_descriptors_for_a_process_set() -> None:
    def add(rank: int) -> None:
        import os
        import resource

        import numpy
        import pytest

        from spark_estimator.collectives import arrays, context
        from spark_estimator.errors import HorovodInternalError

        context.init(process_sets="dynamic")
        # 0 left: no connection can be made or taken; 5 left: they can, but no engine can be started for them.
        for left in (0, 5):
            for short_of in (0, 1):
                taken = []
                if rank == short_of:
                    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
                    resource.setrlimit(resource.RLIMIT_NOFILE, (100, most))
                    with pytest.raises(OSError, match="Too many open files"):
                        while True:
                            taken.append(os.open(os.devnull, os.O_RDONLY))
                    for _ in range(left):
                        os.close(taken.pop())
                arrays.barrier()
                message = (
                    rf"add_process_set on rank {short_of}: .*EMFILE\): {left} are left of its .* 100.* 12 are needed"
                )
                with pytest.raises(HorovodInternalError, match=message):
                    context.add_process_set([0, 1])
                for descriptor in taken:
                    os.close(descriptor)
        first = context.add_process_set([0, 1])
        if rank < 2:
            assert arrays.allreduce(numpy.ones(1), arrays.ReduceOp.SUM, process_set=first) == 2

    run_ranks(3, add)
