"""Elastic jobs whose tensors are on GPUs: the remaining ranks make new groups of GPUs, on the same devices."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

from spark_estimator._native import Op
from spark_estimator.elastic.decisions import Terms
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions

#: How GPU tensors are sent, and the engine's description of it.
WAYS = {
    "nccl": ({"HOROVOD_GPU_OPERATIONS": "nccl"}, "through NCCL"),
    "one GPU": ({"FAKE_CUDA_DEVICES": "1"}, "share one GPU"),
    "staged": ({"HOROVOD_GPU_OPERATIONS": "staged"}, "through pinned host memory"),
}


@pytest.fixture(scope="module", autouse=True)
def functions_travel_by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def train(tests: str) -> dict[str, Any]:
    """Twelve sums on each rank's GPU; the second of three ranks kills itself before the sixth."""
    import numpy

    sys.path.insert(0, tests)
    from spark_estimator.collectives import context, ops
    from spark_estimator.collectives.objects import broadcast_object
    from spark_estimator.elastic import ObjectState, rejoin, run_fn
    from tests import fake_gpus
    from tests.scenarios.collectives.gpu_programs import on_gpu

    context.init()
    local_rank = context.local_rank()
    device = fake_gpus.device_of(local_rank)  # chosen once, as a user's script does
    gpu, memory, tensors = on_gpu(device, numpy.zeros(1000))

    def loop(state: Any) -> list[float]:
        while len(state.sums) < 12:
            if len(state.sums) == 5 and context.size() == 3 and context.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            memory.array[:] = context.rank() + 1.0
            ops.run(Op.ALLREDUCE, "sum", tensors, keep=memory, gpu=gpu)
            # What was read from a stream before the others' loss was known is nothing to build on.
            fake_gpus.synchronize(gpu.stream)
            ops.barrier()
            state.sums = [*state.sums, float(memory.array.mean())]
            state.commit()
        sums: list[float] = state.sums
        return sums

    sums = run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank, sums=[]))
    return {"sums": sums, "way": context.engine().describe("gpu"), "local_rank": local_rank}


@pytest.mark.parametrize("way", WAYS)
def test_survivors_go_on_with_their_gpus(fakes: dict[str, str], way: str) -> None:
    environ, described = WAYS[way]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    results = run_elastic_local(train, Terms(3, 2), JobOptions(args=(root,), environment={**fakes, **environ}))
    assert [result["local_rank"] for result in results] == [0, 2]
    for result in results:
        assert result["sums"] == [6.0] * 5 + [3.0] * 7
        assert described in result["way"]
