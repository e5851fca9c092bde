"""Measures what compression of gradients saves and costs: bytes, accuracy, and the time of an exchange, on two ranks.

``python -m benchmarks.compression [--epochs 10] [--splits 3] [--steps 20]`` prints a line for each compression:

- the bytes that a rank gives to the engine in a step, and the accuracy on held-out images: for the training of
  ``spark_estimator/demo.py`` (scikit-learn's digits) with that compression from the first step on
  (``dense_steps=0``), the mean of several splits into training and held-out images;
- the median milliseconds that the exchange adds to a backward pass for a matrix of 2048 x 4096 (8.4 million
  parameters), with one thread for each rank.

Before the times, the averages of a matrix of rank 1 must be right to 1 % for all but top-k, which sends some elements.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.command_line import positive
from benchmarks.interleaved import BenchmarkError
from spark_estimator import HorovodRunner

#: The name of each compression, and how it is made from ``hvd.Compression``: the attribute and its arguments.
CHOICES: dict[str, tuple[str, dict[str, float]]] = {
    "none": ("none", {}),
    "bf16": ("bf16", {}),
    "powersgd(rank=4)": ("powersgd", {"rank": 4, "dense_steps": 0}),
    "powersgd(rank=2)": ("powersgd", {"rank": 2, "dense_steps": 0}),
    "topk(ratio=0.05)": ("topk", {"ratio": 0.05, "dense_steps": 0}),
    "topk(ratio=0.01)": ("topk", {"ratio": 0.01, "dense_steps": 0}),
}
RANKS = 2
SHAPE = (2048, 4096)


def compression_of(name: str) -> Any:
    """The compression that `DistributedOptimizer` takes."""
    import spark_estimator.torch as hvd

    attribute, arguments = CHOICES[name]
    choice = getattr(hvd.Compression, attribute)
    return choice(**arguments) if arguments else choice


def train(name: str, epochs: int, seed: int) -> tuple[int, float]:
    """On each rank: the bytes of a step and the accuracy of the demo's training with this compression."""
    import spark_estimator.torch as hvd
    from spark_estimator import demo

    optimizers: list[Any] = []
    make = hvd.DistributedOptimizer

    def compressed(*args: Any, **kwargs: Any) -> Any:
        optimizers.append(make(*args, **kwargs | {"compression": compression_of(name)}))
        return optimizers[-1]

    hvd.DistributedOptimizer = compressed
    with contextlib.redirect_stdout(None):  # its lines on the losses of the epochs
        accuracy = demo.train(epochs=epochs, seed=seed)
    return optimizers[0].bytes_given, accuracy


def exchange(name: str, steps: int) -> tuple[float, float]:
    """On each rank: the median milliseconds of an exchange, and the largest relative error of the first average."""
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    alone, parameter = (torch.nn.Parameter(torch.zeros(SHAPE)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.0), [("matrix", parameter)], compression=compression_of(name)
    )
    generator = torch.Generator().manual_seed(0)
    gradient = torch.outer(torch.randn(SHAPE[0], generator=generator), torch.randn(SHAPE[1], generator=generator))
    average = gradient * (sum(range(1, hvd.size() + 1)) / hvd.size())
    gradient *= hvd.rank() + 1

    def milliseconds_of_backward(of: torch.nn.Parameter) -> float:
        loss = (of * gradient).sum()
        hvd.barrier()
        began = time.perf_counter()
        loss.backward()  # its end waits for the exchange
        return 1000 * (time.perf_counter() - began)

    times, error = [], 0.0
    for step in range(steps + 1):
        alone.grad = None
        optimizer.zero_grad()
        without = milliseconds_of_backward(alone)
        times.append(milliseconds_of_backward(parameter) - without)
        assert parameter.grad is not None
        if step == 0:
            error = float((parameter.grad - average).abs().max() / average.abs().max())
        optimizer.step()
    return statistics.median(times[1:]), error


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints a line for each compression."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=positive, default=10, help="of each training (default 10)")
    parser.add_argument("--splits", type=positive, default=3, help="trainings of each compression (default 3)")
    parser.add_argument("--steps", type=positive, default=20, help="timed exchanges of each compression (default 20)")
    options = parser.parse_args(arguments)
    runner = HorovodRunner(np=-RANKS)
    print(f"{'compression':<18} {'bytes a step':>12} {'accuracy':>9} {'ms':>7}")
    for name in CHOICES:
        milliseconds, error = runner.run(exchange, name=name, steps=options.steps)
        if error > 0.01 and not name.startswith("topk"):
            raise BenchmarkError(f"{name}: an average is wrong by {error:.1%}")
        results = [
            runner.run(train, name=name, epochs=options.epochs, seed=seed) for seed in range(1, options.splits + 1)
        ]
        accuracy = statistics.mean(value for _, value in results)
        print(f"{name:<18} {results[0][0]:>12,} {accuracy:>9.1%} {milliseconds:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
