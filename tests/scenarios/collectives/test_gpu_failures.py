"""GPUs, libraries and ranks that fail while GPU tensors are in flight: every rank gets the reason, and none hangs."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest

from spark_estimator._native import DType, Op
from tests.ranks import run_ranks, start_ranks

#: How GPU tensors are sent.
WAYS: dict[str, dict[str, str]] = {
    "nccl": {"HOROVOD_GPU_OPERATIONS": "nccl"},
    "staged": {"HOROVOD_GPU_OPERATIONS": "staged"},
    "one GPU": {"FAKE_CUDA_DEVICES": "1"},
}
ways = pytest.mark.parametrize("way", WAYS)


def wait_for_a_dead_rank(rank: int, dies: int) -> list[str]:
    """All ranks but one submit collectives on their GPUs; that one kills itself. Gives what each ended in."""
    import signal

    import numpy

    from spark_estimator.collectives import context, ops
    from spark_estimator.errors import PeerLostError
    from tests import fake_gpus
    from tests.scenarios.collectives.gpu_programs import on_gpu

    gpu, memory, [tensor] = on_gpu(fake_gpus.device_of(rank), numpy.ones(100_000))
    ops.run(Op.ALLREDUCE, "together", [tensor], keep=memory, gpu=gpu)
    fake_gpus.synchronize(gpu.stream)
    if rank == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    options: dict[str, Any] = {"keep": memory, "gpu": gpu}
    submits = [
        *(functools.partial(ops.submit, Op.ALLREDUCE, f"sum {number}", [tensor], **options) for number in range(5)),
        functools.partial(ops.submit, Op.BROADCAST, "broadcast", [tensor], root_rank=dies, **options),
        functools.partial(ops.submit, Op.ALLGATHER, "gather", [tensor._replace(output=0)], **options),
    ]
    messages, pending = [], []
    for submit in submits:
        try:
            pending.append(submit())
        except PeerLostError as error:  # it is known already
            messages.append(str(error))
    for handle in pending:
        try:
            handle.wait()
        except PeerLostError as error:
            messages.append(str(error))
    fake_gpus.synchronize(gpu.stream)  # which nothing holds up
    context.shutdown()
    return messages


@ways
@pytest.mark.parametrize(("n", "dies"), [(2, 1), (3, 0)])
def test_a_killed_rank_is_named(fakes: dict[str, str], way: str, n: int, dies: int) -> None:
    environ = {**fakes, **WAYS[way]}
    with start_ranks(n, wait_for_a_dead_rank, args=(dies,), environ=environ) as ranks:
        outcomes = ranks.wait(timeout=60)
    assert outcomes[dies].exit_code == -signal.SIGKILL
    for outcome in outcomes:
        if outcome.rank != dies:
            assert outcome.returned, outcome
            assert len(outcome.value) == 7
            assert all(f"rank {dies}" in message for message in outcome.value), outcome.value


@ways
def test_a_rank_that_is_killed_amid_the_others_work(fakes: dict[str, str], way: str) -> None:
    def work(rank: int) -> str:
        import numpy

        from spark_estimator.collectives import context, ops
        from spark_estimator.errors import PeerLostError
        from tests import fake_gpus
        from tests.scenarios.collectives.gpu_programs import on_gpu

        values = numpy.ones(300_000, numpy.float32)
        gpu, memory, tensors = on_gpu(fake_gpus.device_of(rank), values, DType.FLOAT32)
        error_text = ""
        for turn in range(1 << 30):
            try:
                ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory, gpu=gpu)
            except PeerLostError as error:
                error_text = str(error)
                break
            if turn == 5:
                print("under way", flush=True)
        fake_gpus.synchronize(gpu.stream)
        context.shutdown()
        return error_text

    with start_ranks(3, work, environ={**fakes, **WAYS[way]}) as ranks:
        for rank in range(3):
            ranks.await_output(rank, "under way")
        ranks.kill(1)
        outcomes = ranks.wait(timeout=60)
    for rank in (0, 2):
        assert outcomes[rank].returned, outcomes[rank]
        assert "rank 1" in outcomes[rank].value


@ways
def test_a_rank_that_ends_with_operations_under_way(fakes: dict[str, str], way: str) -> None:
    def work(rank: int) -> str:
        import sys

        import numpy

        from spark_estimator.collectives import ops
        from spark_estimator.errors import ShutDownError
        from tests import fake_gpus
        from tests.scenarios.collectives.gpu_programs import on_gpu

        values = numpy.ones(300_000, numpy.float32)
        gpu, memory, tensors = on_gpu(fake_gpus.device_of(rank), values, DType.FLOAT32)
        memories = [memory, *(fake_gpus.on_gpu(memory.array) for _ in range(9))]
        tensors = [tensors[0]._replace(input=each.address, output=each.address) for each in memories]
        for turn in range(5):
            ops.run(Op.ALLREDUCE, f"together {turn}", tensors[:1], keep=memories, gpu=gpu)
        error_text = ""
        try:
            for turn in range(1 << 30):
                handles = [
                    ops.submit(Op.ALLREDUCE, f"{turn} {number}", [tensor], keep=memories, gpu=gpu)
                    for number, tensor in enumerate(tensors)
                ]
                if rank == 1:
                    sys.exit()
                for handle in handles:
                    handle.await_on(gpu.stream)
        except ShutDownError as error:
            error_text = str(error)
        fake_gpus.synchronize(gpu.stream)  # which nothing holds up
        return error_text

    with start_ranks(3, work, environ={**fakes, **WAYS[way]}) as ranks:
        outcomes = ranks.wait(timeout=60)
    assert isinstance(outcomes[1].error, SystemExit)
    for rank in (0, 2):
        assert outcomes[rank].returned, outcomes[rank]
        assert "rank 1" in outcomes[rank].value and outcomes[rank].exit_code == 0


def first_sum(rank: int, device: int | None = None) -> tuple[str, str]:
    """What the first allreduce on a GPU ends in: an error's type and text, or how GPU tensors are sent."""
    import numpy

    from spark_estimator.collectives import context, ops
    from tests import fake_gpus
    from tests.scenarios.collectives.gpu_programs import on_gpu

    gpu, memory, tensors = on_gpu(rank if device is None else device, numpy.ones(10))
    try:
        ops.run(Op.ALLREDUCE, "first", tensors, keep=memory, gpu=gpu)
    except Exception as error:
        outcome = type(error).__name__, str(error)
    else:
        fake_gpus.synchronize(gpu.stream)
        assert (memory.array == context.size()).all()
        outcome = "", context.engine().describe("gpu")
    context.shutdown()
    return outcome


@pytest.mark.slow
def test_a_rank_that_never_comes_to_nccl_is_not_waited_for_for_ever(fakes: dict[str, str]) -> None:
    environ = {**fakes, "FAKE_NCCL_HANG_INIT": "1", "HOROVOD_START_TIMEOUT": "3"}
    for kind, text in run_ranks(2, first_sum, environ=environ, timeout=90):
        assert kind, text
        assert "NCCL" in text and "HOROVOD_GPU_OPERATIONS=staged" in text, text


def test_slices_of_one_gpu_do_without_nccl(fakes: dict[str, str]) -> None:
    for kind, text in run_ranks(2, first_sum, environ={**fakes, "FAKE_CUDA_ONE_BOARD": "1"}, timeout=60):
        assert not kind, text
        assert "through pinned host memory" in text and "have parts (MIG) of one GPU (0000:01:00.0" in text, text


def test_more_ranks_than_gpus_share_them(fakes: dict[str, str]) -> None:
    def turns(rank: int) -> tuple[str, str]:
        return first_sum(rank, rank % 2)

    for kind, text in run_ranks(3, turns, environ={**fakes, "FAKE_CUDA_DEVICES": "2"}, timeout=60):
        assert not kind, text
        assert "through pinned host memory: rank 0" in text and "share one GPU" in text, text
    # Where each could have one, it is a mistake.
    for kind, text in run_ranks(2, turns, environ={**fakes, "FAKE_CUDA_UUIDS": "a,a,b"}, timeout=60):
        assert kind and "call torch.cuda.set_device(hvd.local_rank())" in text, text


def test_ranks_that_were_told_different_ways(fakes: dict[str, str]) -> None:
    def contradict(rank: int) -> tuple[str, str]:
        os.environ["HOROVOD_GPU_OPERATIONS"] = ("auto", "staged")[rank]
        return first_sum(rank)

    for kind, text in run_ranks(2, contradict, environ=fakes, timeout=60):
        assert kind, text
        assert "HOROVOD_GPU_OPERATIONS is auto on rank 0" in text and "staged on rank 1" in text, text


@pytest.mark.parametrize(("operations", "warns"), [("auto", True), ("staged", False)])
def test_the_slow_way_is_warned_of_once(fakes: dict[str, str], operations: str, warns: bool) -> None:
    environ = {**fakes, "HOROVOD_GPU_OPERATIONS": operations, "SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    with start_ranks(2, first_sum, environ=environ) as ranks:
        outcomes = ranks.wait(timeout=60)
    assert all(outcome.returned for outcome in outcomes), outcomes
    assert outcomes[0].output.count("through pinned host memory: rank 0") == int(warns), outcomes[0].output
    assert "host memory" not in outcomes[1].output


def test_ways_that_are_demanded_and_cannot_be(fakes: dict[str, str]) -> None:
    environ = {**fakes, "HOROVOD_GPU_OPERATIONS": "nccl"}
    for kind, text in run_ranks(2, first_sum, environ={**environ, "FAKE_NCCL_VERSION": "21300"}):
        assert kind and "2.13" in text and "2.14" in text, text
    for kind, text in run_ranks(2, first_sum, args=(0,), environ=environ):  # both on one GPU
        assert kind and "share one GPU" in text, text
    gone = {**environ, "HOROVOD_GPU_OPERATIONS": "auto", "SPARK_ESTIMATOR_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    for kind, text in run_ranks(2, first_sum, environ=gone):
        assert kind == "" and "host memory" in text and "/nowhere/libnccl.so.2" in text, text


def test_a_cuda_that_is_not_there_is_told_with_the_way_out(fakes: dict[str, str]) -> None:
    def submit(rank: int) -> list[str]:
        import ctypes

        from spark_estimator.collectives import context, ops
        from spark_estimator.collectives.ops import Gpu

        context.init()
        memory = (ctypes.c_double * 4)()
        tensors = [ops.Tensor(ctypes.addressof(memory), ctypes.addressof(memory), DType.FLOAT64, (4,))]
        errors = []
        for device in (0, 9):
            with pytest.raises(ValueError) as caught:
                ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory, gpu=Gpu(device, 0))
            errors.append(str(caught.value))
        ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory)  # nothing was sent
        context.shutdown()
        return errors

    gone = {**fakes, "SPARK_ESTIMATOR_CUDA_LIBRARY": "/nowhere/libcudart.so.12"}
    for texts in run_ranks(2, submit, environ=gone):
        assert all("/nowhere/libcudart.so.12" in text and "GPU_OPERATIONS=copy" in text for text in texts), texts
    for texts in run_ranks(1, submit, environ={**fakes, "FAKE_CUDA_DEVICES": "0"}):
        assert all("GPU_OPERATIONS=copy" in text for text in texts), texts


def test_nccl_that_fails_later(fakes: dict[str, str]) -> None:
    def work(rank: int) -> str:
        import numpy

        from spark_estimator.collectives import context, ops
        from spark_estimator.errors import HorovodInternalError
        from tests import fake_gpus
        from tests.scenarios.collectives.gpu_programs import on_gpu

        gpu, memory, tensors = on_gpu(rank, numpy.ones(10))
        ops.run(Op.ALLREDUCE, "well", tensors, keep=memory, gpu=gpu)
        fake_gpus.synchronize(gpu.stream)
        if rank == 1:
            fake_gpus.nccl().fake_nccl_fail_async(1, 2)  # a system error
        with pytest.raises(HorovodInternalError) as caught:
            for number in range(1 << 30):
                ops.run(Op.ALLREDUCE, f"sum {number}", tensors, keep=memory, gpu=gpu)
        fake_gpus.synchronize(gpu.stream)
        context.shutdown()
        return str(caught.value)

    texts = run_ranks(2, work, environ=fakes)
    assert "NCCL" in texts[1], texts
    assert "rank 1" in texts[0], texts


def test_a_stream_that_is_being_captured_is_refused(fakes: dict[str, str]) -> None:
    def work(rank: int) -> str:
        import numpy

        from spark_estimator.collectives import context, ops
        from tests import fake_gpus
        from tests.scenarios.collectives.gpu_programs import on_gpu

        gpu, memory, tensors = on_gpu(rank, numpy.ones(10))
        fake_gpus.cuda().fake_cuda_capture(gpu.stream, 1)
        with pytest.raises(ValueError) as caught:
            ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory, gpu=gpu)
        fake_gpus.cuda().fake_cuda_capture(gpu.stream, 0)
        ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory, gpu=gpu)
        fake_gpus.synchronize(gpu.stream)
        assert (memory.array == 2).all()
        context.shutdown()
        return str(caught.value)

    for text in run_ranks(2, work, environ=fakes):
        assert "captured" in text and "graph" in text


def test_a_handle_that_is_dropped_keeps_its_memory_until_the_gpu_is_through(fakes: dict[str, str]) -> None:
    def work(rank: int) -> None:
        import time
        import weakref

        import numpy

        from spark_estimator.collectives import context, ops
        from spark_estimator.collectives.ops import Gpu
        from tests import fake_gpus

        context.init()
        fake_gpus.use(rank)
        gpu = Gpu(rank, fake_gpus.new_stream())
        tiny = fake_gpus.on_gpu(numpy.ones(1))
        others = [ops.Tensor(tiny.address, tiny.address, DType.FLOAT64, (1,))]
        ops.run(Op.ALLREDUCE, "before", others, keep=tiny, gpu=gpu)
        for gathers in (False, True):
            memory = fake_gpus.on_gpu(numpy.ones(1000))
            gone = weakref.ref(memory)
            tensor = ops.Tensor(memory.address, 0 if gathers else memory.address, DType.FLOAT64, (1000,))
            handle = ops.submit(Op.ALLGATHER if gathers else Op.ALLREDUCE, "dropped", [tensor], keep=memory, gpu=gpu)
            del memory
            handle.wait()
            del handle
            assert gone() is not None  # done is not through
            deadline = time.monotonic() + 30
            while gone() is not None and time.monotonic() < deadline:  # the next requests release it
                ops.run(Op.ALLREDUCE, "next", others, keep=tiny, gpu=gpu, repeats=False)
            assert gone() is None
        # One that is still there at the end.
        ops.submit(Op.ALLREDUCE, "last", others, keep=tiny, gpu=gpu)
        ops.barrier()
        context.shutdown()

    run_ranks(2, work, environ=fakes)


def test_who_sends_the_wrong_way_is_told(fakes: dict[str, str]) -> None:
    def work(rank: int) -> None:
        import numpy

        from spark_estimator.collectives import context, ops
        from spark_estimator.collectives.ops import Gpu
        from tests import fake_gpus

        context.init()
        gpu = Gpu(0, fake_gpus.new_stream())
        memory = fake_gpus.on_gpu(numpy.ones(4))
        inside = ops.Tensor(memory.address, memory.address, DType.FLOAT64, (4,))
        rows = inside._replace(output=0)
        on_gpu = ops.submit(Op.ALLGATHER, "gather", [rows], keep=memory, gpu=gpu)
        reduced = ops.submit(Op.ALLREDUCE, "sum", [inside], keep=memory, gpu=gpu)
        on_host = ops.submit(Op.ALLGATHER, "of the host", [rows], keep=memory)
        for wrong, right in (
            (on_gpu.gathered, "rows"),
            (lambda: on_gpu.await_on(0), "collect"),
            (reduced.rows, "result in its output"),
            (on_host.rows, "gathered"),
            (lambda: on_host.await_on(0), "wait"),
        ):
            with pytest.raises(TypeError, match=right):
                wrong()
        output = fake_gpus.Memory((4,), numpy.float64)
        on_gpu.collect([output.address], gpu.stream)
        with pytest.raises(RuntimeError, match="collected already"):
            on_gpu.collect([output.address], gpu.stream)
        fake_gpus.synchronize(gpu.stream)
        assert (output.array == 1).all()
        with pytest.raises(ValueError, match="one GPU"):
            ops.run(Op.ALLREDUCE, "another", [inside], keep=memory, gpu=Gpu(1, 0))
        context.shutdown()

    run_ranks(1, work, environ=fakes)
