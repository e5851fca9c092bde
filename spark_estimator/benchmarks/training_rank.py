"""A rank that takes training steps when the controller of ``benchmarks.training`` says so, one variant at a time.

Variants: ``none``, every rank for itself; ``ours``, with ``hvd.DistributedOptimizer``; ``ddp``, PyTorch's
``DistributedDataParallel`` over gloo. A step is forward, backward, whatever is exchanged, and an SGD step.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.benchmarks.conversation import answer_commands
from spark_estimator.launch.worker import bind_to_parent

_UNCOUNTED = 2
_CHECKED_STEPS = 3
# Sums in another order than the reference's, in float32, after three steps.
_TOLERANCE = 1e-4


class GradientShapes(nn.Module):
    """ResNet-50's parameters with next to no computation: the gradient of each is as large as the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.full(shape, 0.01)) for shape in resnet50_shapes()])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [batch, any]. Returns a scalar."""
        total = inputs.mean()
        return total * torch.stack([parameter.sum() for parameter in self.all]).sum()


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 parameters (He et al. 2015), in order."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(width, before, 1, 1), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            shapes += [(4 * width, width, 1, 1), (4 * width,), (4 * width,)]
            if block == 0:
                shapes += [(4 * width, before, 1, 1), (4 * width,), (4 * width,)]
            before = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(100):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    return nn.Sequential(*layers)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


@dataclass(frozen=True)
class Model:
    """What is trained.

    Attributes:
        make: the model, with the same parameters wherever the generator's seed is the same.
        inputs: shape of a batch.
        learning_rate: small enough for the checked steps to stay in the range of float32.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    learning_rate: float


MODELS = {
    "mlp": Model(_mlp, (32, 64), 1e-2),
    "resnet50": Model(GradientShapes, (1, 1), 1e-6),
    "transformer": Model(_transformer, (4, 64, 256), 1e-3),
}


class Training:
    """One model under one variant, ready to take steps."""

    def __init__(self, variant: str, name: str) -> None:
        self.description = MODELS[name]
        torch.manual_seed(0)
        self.model = self.description.make()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.description.learning_rate)
        self._forward = self.model
        if variant == "ours":
            optimizer = hvd.DistributedOptimizer(optimizer, self.model.named_parameters())
        elif variant == "ddp":
            self._forward = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self._optimizer = optimizer
        self._inputs = inputs_of(name, hvd.rank(), 0)

    def step(self, inputs: torch.Tensor | None = None) -> None:
        """One training step on these inputs, by default always the same."""
        self._optimizer.zero_grad()
        loss_of(self._forward(self._inputs if inputs is None else inputs)).backward()
        self._optimizer.step()


def inputs_of(name: str, rank: int, step: int) -> torch.Tensor:
    """A rank's batch of a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(MODELS[name].inputs, generator=generator)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """What is minimised."""
    return output.square().mean()


def _reference(name: str) -> nn.Module:
    """The model after the checked steps of all ranks together, computed here alone."""
    torch.manual_seed(0)
    model = MODELS[name].make()
    optimizer = torch.optim.SGD(model.parameters(), lr=MODELS[name].learning_rate)
    for step in range(_CHECKED_STEPS):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            (loss_of(model(inputs_of(name, rank, step))) / hvd.size()).backward()
        optimizer.step()
    return model


class Rank:
    """Answers commands; keeps the models of the last name that was asked for, so that turns find the same memory."""

    def __init__(self) -> None:
        self._name = ""
        self._ready: dict[str, Training] = {}

    def answer(self, line: str) -> str:
        """The answer to one command, without the end of line."""
        verb, variant, name, *rest = line.split()
        try:
            if name != self._name:
                self._ready.clear()
                self._name = name
            if verb == "hooks":
                return f"hooks {self._in_hooks(self._training('ours', name)):.0f}"
            if verb == "check":
                return self._check(variant, name)
            return "times " + " ".join(f"{time:.0f}" for time in self._block(variant, name, int(rest[-1])))
        except Exception as error:
            return "failed " + " ".join(f"{type(error).__name__}: {error}".split())

    def _training(self, variant: str, name: str) -> Training:
        if variant not in self._ready:
            self._ready[variant] = Training(variant, name)
        return self._ready[variant]

    def _check(self, variant: str, name: str) -> str:
        if variant == "none":
            return "ok"
        training = Training(variant, name)
        for step in range(_CHECKED_STEPS):
            training.step(inputs_of(name, hvd.rank(), step))
        for number, (ours, right) in enumerate(
            zip(training.model.parameters(), _reference(name).parameters(), strict=True)
        ):
            if not torch.allclose(ours, right, rtol=_TOLERANCE, atol=_TOLERANCE * float(right.abs().max())):
                return f"wrong numbers on rank {hvd.rank()}, parameter {number} of {name}"
        return "ok"

    def _block(self, variant: str, name: str, samples: int) -> list[float]:
        """Nanoseconds a step."""
        training = self._training(variant, name)
        times: list[float] = []
        for _ in range(_UNCOUNTED + samples):
            hvd.barrier()
            start = time.perf_counter_ns()
            training.step()
            times.append(time.perf_counter_ns() - start)
        return times[_UNCOUNTED:]

    def _in_hooks(self, training: Training) -> float:
        """Nanoseconds a parameter that backward spends in hooks: noting gradients, submitting buckets."""
        figures = []
        for _ in range(20):
            with _timed_hooks(training.model) as spent:
                training.step()
            figures.append(spent[0] / max(1, spent[1]))
        return sorted(figures)[len(figures) // 2]


@contextlib.contextmanager
def _timed_hooks(model: nn.Module) -> Iterator[list[int]]:
    """Sums up the nanoseconds in the hooks of parameters, and counts them; the clock's own cost is taken off."""
    spent = [0, 0]
    clock = time.perf_counter_ns
    begin = clock()
    for _ in range(1000):
        clock()
    reading = (clock() - begin) // 1000

    def timed(own: Any) -> Any:
        def hook(param: torch.Tensor) -> None:
            start = clock()
            own(param)
            spent[0] += clock() - start - reading
            spent[1] += 1

        return hook

    hooks = [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.update({number: timed(hook) for number, hook in each.items()})
    try:
        yield spent
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)


def main() -> None:
    """Entry point of each process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path, help="where the controller listens")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--gloo", help="tcp://host:port where gloo's ranks meet")
    options = parser.parse_args()
    bind_to_parent(options.parent)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    hvd.init()
    if options.gloo:
        dist.init_process_group("gloo", init_method=options.gloo, rank=hvd.rank(), world_size=hvd.size())
    answer_commands(options.socket, hvd.rank(), hvd.size(), Rank().answer)
    if options.gloo:
        with contextlib.suppress(Exception):  # its peers may have gone first
            dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main()
