"""Times the second and later jobs of a session: functions, fits, and a search of many small fits.

``python -m benchmarks.launchers.repeated [--master 'local[2]'] [--rounds 10] [--folds 5]`` prints medians of
interleaved rounds, after one round that is not counted:

- *function*: seconds from the call until rank 0 enters the function, until it has trained one step of a small network
  with PyTorch, and until the call returns. TorchDistributor trains with DDP on gloo.
- *fit*: `TorchEstimator.fit` of 10,000 rows for two epochs.
- *search*: `CrossValidator` over six parameters, once each, `num_proc=1` and two trials at a time.

*warm* are this package's jobs; *cold* the same with ``SPARK_ESTIMATOR_WARM=0``. The losses of both must be the same.
TorchDistributor's rounds come last: its tasks do not read their input, so Spark ends their Python workers, and what
these keep with them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from benchmarks.command_line import positive
from benchmarks.interleaved import BenchmarkError
from benchmarks.launch import _quiet, session, warm_workers
from spark_estimator import HorovodRunner, TorchEstimator

_ROWS, _WIDTH = 10_000, 4


def step_with_hvd() -> tuple[float, float, float]:
    """Return when the function was entered, when its first step had ended, and the loss."""
    entered = time.time()
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(_WIDTH, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    return entered, *_step(model, optimizer)


def step_with_ddp() -> tuple[float, float, float]:
    """Do the same under TorchDistributor."""
    entered = time.time()
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(_WIDTH, 1))
    result = entered, *_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    dist.destroy_process_group()
    return result


def _step(model: Any, optimizer: Any) -> tuple[float, float]:
    import torch

    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(torch.ones(8, _WIDTH)), torch.zeros(8, 1))
    loss.backward()
    optimizer.step()
    return time.time(), round(float(loss.detach()), 6)


@contextlib.contextmanager
def _without_server() -> Iterator[None]:
    os.environ["SPARK_ESTIMATOR_WARM"] = "0"
    try:
        yield
    finally:
        del os.environ["SPARK_ESTIMATOR_WARM"]


def time_functions(size: int, rounds: int) -> None:
    """Print the times of functions."""
    from pyspark.ml.torch.distributor import TorchDistributor

    def distributor() -> Any:
        with _quiet():
            return TorchDistributor(num_processes=size, local_mode=False, use_gpu=False).run(step_with_ddp)

    ways: dict[str, tuple[Callable[[], Any], bool]] = {
        "warm": (lambda: HorovodRunner(np=size).run(step_with_hvd), True),
        "cold": (lambda: HorovodRunner(np=size).run(step_with_hvd), False),
        "warm, np < 0": (lambda: HorovodRunner(np=-size).run(step_with_hvd), True),
        "cold, np < 0": (lambda: HorovodRunner(np=-size).run(step_with_hvd), False),
        "TorchDistributor": (distributor, True),
    }
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
    losses = set()
    names = [name for name in ways if name != "TorchDistributor"]
    for number, name in [*product(range(rounds + 1), names), *product(range(rounds + 1), ["TorchDistributor"])]:
        run, warm = ways[name]
        with contextlib.nullcontext() if warm else _without_server():
            began = time.time()
            entered, stepped, loss = run()
            ended = time.time()
        losses.add(loss)
        if number:
            times[name].append((entered - began, stepped - began, ended - began))
    if len(losses) != 1:
        raise BenchmarkError(f"the losses of the first step differ: {losses}")
    print(f"{f'function of {size} ranks':24}{'entered':>10}{'first step':>12}{'returned':>10}  seconds")
    for name, rows in times.items():
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        print(f"{name:24}{medians[0]:10.3f}{medians[1]:12.3f}{medians[2]:10.3f}", flush=True)


def _make_estimator(ranks: int) -> TorchEstimator:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(_WIDTH, 1)
    return TorchEstimator(
        num_proc=ranks, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), loss=torch.nn.MSELoss(),
        feature_cols=[f"x{number}" for number in range(_WIDTH)], label_cols=["y"], prediction_col="prediction",
        batch_size=500, epochs=2, random_seed=1, verbose=0,
    )  # fmt: skip


def time_fits(spark: Any, size: int, rounds: int, folds: int) -> None:
    """Print the times of a fit and of a search."""
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    df = spark.range(0, _ROWS, 1, size).selectExpr(*(f"float(rand({number})) as x{number}" for number in range(_WIDTH)))
    df = df.selectExpr("*", "float(2 * x0 - x1) as y").cache()
    df.count()
    single = _make_estimator(1)
    grid = ParamGridBuilder().addGrid(single.learning_rate, [0.01 * number for number in range(1, 7)]).build()
    search = CrossValidator(
        estimator=single, estimatorParamMaps=grid, numFolds=folds, parallelism=2, seed=1,
        evaluator=RegressionEvaluator(labelCol="y", predictionCol="prediction", metricName="rmse"),
    )  # fmt: skip
    ways: dict[str, tuple[Callable[[], list[float]], int]] = {
        "fit": (lambda: [_make_estimator(size).fit(df).getHistory()[-1]["train"]["loss"]], rounds),
        f"search of {6 * folds + 1} fits": (lambda: search.fit(df).avgMetrics, 1),
    }
    print(f"{'':24}{'warm':>10}{'cold':>10}{'cold / warm':>13}  seconds")
    for name, (run, times_each) in ways.items():
        warm: list[float] = []
        cold: list[float] = []
        results: list[list[float]] = []
        for number in range(times_each + (times_each > 1)):
            for values, context in ((warm, contextlib.nullcontext()), (cold, _without_server())):
                with context:
                    began = time.time()
                    results.append(run())
                if number or times_each == 1:
                    values.append(time.time() - began)
        if any(abs(a - b) > 1e-6 for result in results for a, b in zip(result, results[0], strict=True)):
            raise BenchmarkError(f"the results of {name} differ: {results}")
        medians = statistics.median(warm), statistics.median(cold)
        print(f"{name:24}{medians[0]:10.2f}{medians[1]:10.2f}{medians[1] / medians[0]:13.2f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="local[2]", help="of the Spark session (local[2])")
    parser.add_argument("--np", type=positive, default=2, help="ranks of a job (2)")
    parser.add_argument("--rounds", type=positive, default=10, help="of functions and fits (10)")
    parser.add_argument("--folds", type=positive, default=5, help="of the search: six fits each, and one (5)")
    arguments = parser.parse_args()
    with session(arguments.master) as spark:
        warm_workers(spark, arguments.np)
        time_functions(arguments.np, arguments.rounds)
        time_fits(spark, arguments.np, arguments.rounds, arguments.folds)


if __name__ == "__main__":
    main()
