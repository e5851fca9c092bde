"""What fewer bytes cost in accuracy: trainings on two ranks that are connected as if they were on two hosts.

``python -m benchmarks.accuracy [--tasks digits,breast_cancer,wine,transformer] [--seeds 5] [--variants ...]
[--steps N]`` prints, for each task and variant, the mean over the seeds of the score on held-out rows (accuracy in
percent; of the transformer, which learns the characters of the pages in ``docs``, the loss in nats), the difference to
float32, and how many times fewer bytes a rank gives in a training.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spark_estimator.torch as hvd
from spark_estimator import HorovodRunner
from spark_estimator.console import end_with_reader
from spark_estimator.demo import make_network

VARIANTS = ("float32", "int8", "local_sgd", "diloco", "diloco_streaming", "diloco_0.9")
BATCH = 32
CONTEXT = 64


class Task(NamedTuple):
    """Something to learn.

    Attributes:
        model: with its first parameters.
        inputs, targets: [rows, ...] for the training.
        held_inputs, held_targets: [rows, ...] for the score.
        steps: of a training.
    """

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    held_inputs: torch.Tensor
    held_targets: torch.Tensor
    steps: int


class Characters(nn.Module):
    """A transformer of two layers that predicts the next of 128 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, 64), nn.Embedding(CONTEXT, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """text: [rows, CONTEXT]. Returns scores [rows, 128, CONTEXT]."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.characters(text) + self.places(torch.arange(CONTEXT))
        scores: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True)).transpose(1, 2)
        return scores


def task_of(name: str, seed: int) -> Task:
    """A task; of another seed other first parameters and other held-out rows."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model: nn.Module
    if name == "transformer":
        text = "".join(path.read_text() for path in sorted(Path(__file__).parents[1].glob("docs/**/*.md")))
        codes = torch.tensor([min(127, ord(character)) for character in text])
        rows = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
        inputs, targets, model, steps = rows[:, :-1], rows[:, 1:], Characters(), 640
    else:
        from sklearn import datasets

        data = getattr(datasets, f"load_{name}")()
        inputs, targets = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
        inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
        classes, columns = int(targets.max()) + 1, inputs.shape[1]
        model = nn.Sequential(nn.Linear(columns, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))
        steps = 320
        if name == "digits":
            inputs, model, steps = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, make_network(), 220
    order = torch.randperm(len(targets), generator=generator)
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]
    return Task(model, inputs[rest], targets[rest], inputs[held], targets[held], steps)


def optimizer_of(variant: str, model: nn.Module) -> torch.optim.Optimizer:
    """Adam, with the variant's exchange."""
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    if variant in ("float32", "int8"):
        compression = hvd.Compression.none if variant == "float32" else hvd.Compression.int8
        return hvd.DistributedOptimizer(adam, model.named_parameters(), compression=compression)
    if variant == "local_sgd":
        return hvd.LocalSGD(adam, model.named_parameters())
    options: dict[str, Any] = {"outer_momentum": 0.9} if variant == "diloco_0.9" else {}
    if variant == "diloco_streaming":
        options = {"fragments": 4, "delay": 4}
    return hvd.DiLoCo(adam, model.named_parameters(), **options)


def trained(name: str, variant: str, seed: int, steps: int | None = None) -> tuple[float, float]:
    """The score after a training, and the bytes that this rank has sent in it. Runs on each rank."""
    task = task_of(name, seed)
    if steps is not None:
        task = task._replace(steps=steps)
    optimizer: Any = optimizer_of(variant, task.model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=task.steps)
    generator, sent_bytes, exchanged = torch.Generator().manual_seed(seed), 0, 0
    local = variant not in ("float32", "int8")
    for _ in range(task.steps):
        rows = torch.randint(len(task.targets), (BATCH * hvd.size(),), generator=generator)[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        cross_entropy(task.model(task.inputs[rows]), task.targets[rows]).backward()
        optimizer.step()
        schedule.step()
        if not local or optimizer.outer_steps > exchanged:
            exchanged = optimizer.outer_steps if local else 0
            sent_bytes += optimizer.bytes_given
    if local:
        optimizer.synchronize()
        sent_bytes += optimizer.bytes_given if optimizer.outer_steps > exchanged else 0
    with torch.no_grad():
        scores = task.model(task.held_inputs)
        if name == "transformer":
            return cross_entropy(scores, task.held_targets).item(), sent_bytes
        return 100 * (scores.argmax(1) == task.held_targets).double().mean().item(), sent_bytes


def train_all(
    tasks: Sequence[str], variants: Sequence[str], seeds: int, steps: int | None
) -> dict[tuple[str, str], list[Any]]:
    """(task, variant) -> what `trained` gives for each seed. Runs on each rank."""
    os.environ["SPARK_ESTIMATOR_SHARED_MEMORY"] = "0"
    torch.set_num_threads(1)
    hvd.init()
    return {
        (task, variant): [trained(task, variant, seed, steps) for seed in range(1, seeds + 1)]
        for task in tasks
        for variant in variants
    }


@end_with_reader
def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments and prints a table."""
    parser = argparse.ArgumentParser("python -m benchmarks.accuracy", description=__doc__)
    parser.add_argument("--tasks", default="digits,breast_cancer,wine,transformer")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each training (default: 220 to 640, by task)")
    options = parser.parse_args(argv)
    tasks, variants = options.tasks.split(","), options.variants.split(",")
    results = HorovodRunner(np=-2).run(
        train_all, tasks=tasks, variants=variants, seeds=options.seeds, steps=options.steps
    )
    for task in tasks:
        base, base_bytes = (statistics.mean(values) for values in zip(*results[task, variants[0]], strict=True))
        for variant in variants:
            scores, sent_bytes = zip(*results[task, variant], strict=True)
            mean, fewer = statistics.mean(scores), base_bytes / sent_bytes[0]
            print(
                f"{task:14} {variant:17} {mean:8.3f}   {mean - base:+7.3f}   bytes / {fewer:6.1f}   "
                f"({min(scores):.2f} to {max(scores):.2f})"
            )


if __name__ == "__main__":
    main()
