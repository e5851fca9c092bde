"""The example of DeepSpeed: ZeRO on two ranks computes what one process does. And a rank that is killed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not among the packages of `make build`: its page has how to try")

import spark_estimator
from spark_estimator import HorovodRunner
from spark_estimator.errors import WorkerFailedError
from tests.examples.running import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # DeepSpeed compiles an extension once


@pytest.mark.parametrize("stage", ["1", "2"])
def test_two_ranks_compute_what_one_does(stage: str) -> None:
    printed = (run(n, "deepspeed_digits", "--stage", stage, "--epochs", "2") for n in (1, 2))
    alone, together = ([float(loss) for loss in re.findall(r"loss ([\d.]+)", text)] for text in printed)
    assert len(alone) == 2
    assert together == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("stage", ["1", "2"])
def test_on_spark_as_in_one_process(spark: SparkSession, stage: str) -> None:
    def train(stage: str) -> float:
        from examples.deepspeed_digits import main

        return main(["--epochs", "2", "--stage", stage])

    alone, together = (HorovodRunner(np=number).run(train, stage=stage) for number in (1, 2))
    assert together == pytest.approx(alone, rel=1e-3)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_lost_rank_ends_the_others_with_its_name(dies: int) -> None:
    def train() -> Any:
        import os
        import signal

        import deepspeed
        import torch
        import torch.distributed as dist

        deepspeed.init_distributed()
        model = torch.nn.Linear(4, 1)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "Adam", "params": {"torch_adam": True}},
            "zero_optimization": {"stage": 2},
        }
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
        for number in range(1_000_000):
            if number == 3 and dist.get_rank() == dies:
                os.kill(os.getpid(), signal.SIGKILL)
            engine.backward(engine(torch.ones(1, 4)).sum())
            engine.step()

    with pytest.raises(WorkerFailedError, match=rf"^rank {dies} \(host .*\) was killed by signal 9"):
        spark_estimator.run(train, num_proc=2)
