"""A rank of ``benchmarks.fewer_bytes``: takes steps with one variant after the other; rank 0 prints the times."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spark_estimator.torch as hvd
from benchmarks.training_rank import MODELS, inputs_of, squared
from spark_estimator.launch.worker.worker import bind_to_parent

INNER_STEPS = 32
# At the rate of `training_rank`, the local steps of a round diverge.
_LEARNING_RATES = {"resnet50": 1e-9}
_OPTIONS: dict[str, Any] = {
    "float32": hvd.Compression.none,
    "bf16": hvd.Compression.bf16,
    "int8": hvd.Compression.int8,
}


class Training:
    """A model that one variant trains."""

    def __init__(self, variant: str, name: str) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = MODELS[name].make()
        self.steps = INNER_STEPS if variant in ("local_sgd", "diloco", "diloco_streaming") else 0
        rate = _LEARNING_RATES.get(name, MODELS[name].learning_rate)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)
        named = list(self.model.named_parameters())
        if variant in _OPTIONS:
            optimizer = hvd.DistributedOptimizer(optimizer, named, compression=_OPTIONS[variant])
        elif variant == "local_sgd":
            optimizer = hvd.LocalSGD(optimizer, named, inner_steps=INNER_STEPS)
        elif variant == "diloco":
            optimizer = hvd.DiLoCo(optimizer, named, inner_steps=INNER_STEPS)
        elif variant == "diloco_streaming":
            optimizer = hvd.DiLoCo(optimizer, named, inner_steps=INNER_STEPS, fragments=4, delay=6)
        self._forward: nn.Module = self.model
        if variant == "ddp":
            self._forward = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self._optimizer = optimizer
        self._inputs = inputs_of(name, hvd.rank(), 0)

    def step(self) -> None:
        """Takes one step."""
        self._optimizer.zero_grad()
        squared(self._forward(self._inputs)).backward()
        self._optimizer.step()

    def synchronize(self) -> None:
        """Gives all ranks the same parameters."""
        if self.steps:
            self._optimizer.synchronize()  # type: ignore[attr-defined]

    def parameters(self) -> torch.Tensor:
        """All of them, in one vector."""
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()


def check(trainings: dict[str, Training]) -> None:
    """Raises SystemExit where ranks have other parameters, or compression has made others of them."""
    for variant, training in trainings.items():
        for _ in range(training.steps or 3):
            training.step()
        training.synchronize()
        total = training.parameters().double().sum()
        if not torch.isfinite(total):
            raise SystemExit(f"{variant}: the parameters are not finite")
        if hvd.allreduce(total, op=hvd.Max) != -hvd.allreduce(-total, op=hvd.Max):
            raise SystemExit(f"{variant}: the ranks' parameters differ")
    if "float32" in trainings and "int8" in trainings:
        start = Training("none", next(iter(trainings.values())).name).parameters()
        exact, rounded = (trainings[variant].parameters() - start for variant in ("float32", "int8"))
        if (exact - rounded).abs().max() > 0.02 * exact.abs().max():
            raise SystemExit("int8 has made other steps than float32")


def block(training: Training, steps: int) -> float:
    """Milliseconds a step of the slowest rank."""
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(training.steps or steps):
        training.step()
    milliseconds = torch.tensor((time.perf_counter() - start) / (training.steps or steps) * 1e3)
    return float(hvd.allreduce(milliseconds, op=hvd.Max))


def main() -> None:
    """Measures, and prints a line of JSON on rank 0."""
    parser = argparse.ArgumentParser()
    for name in ("--parent", "--gloo", "--models", "--variants", "--rounds", "--steps"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    bind_to_parent(int(options.parent))
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", init_method=options.gloo, rank=hvd.rank(), world_size=hvd.size())
    result: dict[str, dict[str, list[float]]] = {}
    for name in options.models.split(","):
        trainings = {variant: Training(variant, name) for variant in options.variants.split(",")}
        check(trainings)
        result[name] = {variant: [] for variant in trainings}
        for _ in range(int(options.rounds)):
            for variant, training in trainings.items():
                result[name][variant].append(block(training, int(options.steps)))
    if hvd.rank() == 0:
        print(json.dumps(result))
        sys.stdout.flush()
    dist.destroy_process_group()
    with contextlib.suppress(hvd.HorovodInternalError):
        hvd.shutdown()


if __name__ == "__main__":
    main()
