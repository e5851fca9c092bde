"""ImageNet-style training of a residual network, with learning-rate warm-up, learning-rate decay and checkpoints.

The images are synthetic (one pattern for each class, plus noise), so that nothing has to be downloaded. For real
images, replace `PatternedImages` by a ``torchvision.datasets.ImageFolder``.

``horovodrun -np 2 python -m examples.imagenet_resnet --checkpoint-folder /tmp/resnet``
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import spark_estimator.torch as hvd
from examples.resnet import DEPTHS, resnet


class PatternedImages(Dataset[tuple[torch.Tensor, int]]):
    """Images [3, size, size]: the pattern of the image's class plus noise.

    Args:
        count: number of images.
        classes: number of classes.
        size: pixels per side.
        seed: of the noise; the patterns do not depend on it.
    """

    def __init__(self, count: int, classes: int, size: int, seed: int) -> None:
        self._patterns = torch.randn(classes, 3, size, size, generator=torch.Generator().manual_seed(0))
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % len(self._patterns)
        generator = torch.Generator().manual_seed(self._seed * self._count + index)
        return self._patterns[kind] + torch.randn(self._patterns[kind].shape, generator=generator), kind


class Mean:
    """The mean of a metric over the samples of all ranks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._sums = torch.zeros(2, dtype=torch.float64)  # sum of the values, number of samples

    def update(self, value: torch.Tensor, count: int) -> None:
        """Adds the mean `value` of `count` samples of this rank."""
        self._sums += torch.tensor([float(value) * count, count], dtype=torch.float64)

    def value(self) -> float:
        """The mean over all ranks; all ranks must call it."""
        total = hvd.allreduce(self._sums, op=hvd.Sum, name=self._name)
        return float(total[0] / total[1])


def rate_at(epoch: float, base: float, ranks: int, warmup_epochs: float, steps_down: Sequence[int]) -> float:
    """The learning rate: rises from `base` to `base` times `ranks` (Goyal et al. 2017), then falls by 10 at each decay.

    Args:
        epoch: current epoch, with its fraction.
        base: learning rate for one rank.
        ranks: number of ranks.
        warmup_epochs: duration of the rise.
        steps_down: epochs at which the learning rate is divided by 10.
    """
    if epoch < warmup_epochs:
        return base * (1 + (ranks - 1) * epoch / warmup_epochs)
    return float(base * ranks * 0.1 ** sum(epoch >= step for step in steps_down))


def latest_checkpoint(folder: Path) -> tuple[int, Path | None]:
    """The number of completed epochs, and the checkpoint of the last of them; (0, None) if there is no checkpoint."""
    checkpoints = [
        (int(match[1]), path) for path in folder.glob("*.pt") if (match := re.fullmatch(r"epoch-(\d+)", path.stem))
    ]
    return max(checkpoints, key=lambda checkpoint: checkpoint[0]) if checkpoints else (0, None)


def save(folder: Path, epochs: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes a checkpoint atomically: an interrupted write leaves no incomplete checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"epoch-{epochs}.part"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    os.replace(part, folder / f"epoch-{epochs}.pt")


def main(argv: Sequence[str] | None = None) -> float:
    """Trains on every rank; rank 0 prints and writes checkpoints. Returns the accuracy on held-out images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--checkpoint-folder", type=Path, required=True, help="folder for checkpoints; resumes from the last one"
    )
    parser.add_argument("--depth", type=int, default=18, choices=sorted(DEPTHS))
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage (usually 64)")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and backward pass")
    parser.add_argument("--batches-per-allreduce", type=int, default=1, help="backward passes per step")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--base-lr", type=float, default=0.0125, help="learning rate for one rank")
    parser.add_argument("--warmup-epochs", type=float, default=2)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=5e-5, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    options = parser.parse_args(argv)

    hvd.init()
    torch.manual_seed(1)
    training = PatternedImages(options.images, options.classes, options.image_size, seed=1)
    held_out = PatternedImages(options.images // 4, options.classes, options.image_size, seed=2)
    sampler: DistributedSampler[tuple[torch.Tensor, int]] = DistributedSampler(training, hvd.size(), hvd.rank())
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    testing = DataLoader(
        held_out, options.batch_size, sampler=DistributedSampler(held_out, hvd.size(), hvd.rank(), shuffle=False)
    )
    model = resnet(options.depth, options.classes, options.width)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=options.base_lr, momentum=options.momentum, weight_decay=options.wd
    )

    # Rank 0 loads the last checkpoint; the broadcasts below send its contents to all ranks.
    done, path = latest_checkpoint(options.checkpoint_folder) if hvd.rank() == 0 else (0, None)
    done = hvd.broadcast_object(done, root_rank=0, name="epochs done")
    if path is not None:
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    passes = options.batches_per_allreduce
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        backward_passes_per_step=passes,
    )
    steps_down = [options.epochs * 2 // 3, options.epochs * 5 // 6]
    reached = 0.0
    for epoch in range(done, options.epochs):
        sampler.set_epoch(epoch)
        model.train()
        mean_loss, mean_accuracy = Mean("loss"), Mean("accuracy")
        for number, (images, classes) in enumerate(loader):
            rate = rate_at(
                epoch + number / len(loader), options.base_lr * passes, hvd.size(), options.warmup_epochs, steps_down
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, classes)
            (loss / passes).backward()
            if (number + 1) % passes == 0 or number + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
            mean_loss.update(loss.detach(), len(images))
        model.eval()
        with torch.no_grad():
            for images, classes in testing:
                right = (model(images).argmax(dim=1) == classes).float().mean()
                mean_accuracy.update(right, len(images))
        loss_value, reached = mean_loss.value(), mean_accuracy.value()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: rate {rate:.4f}, loss {loss_value:.3f}, accuracy {reached:.3f}", flush=True)
            save(options.checkpoint_folder, epoch + 1, model, optimizer)
    return reached


if __name__ == "__main__":
    main()
