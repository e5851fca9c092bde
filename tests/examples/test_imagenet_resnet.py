"""The ResNet example: checkpoints and learning rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.imagenet_resnet import PatternedImages, latest_checkpoint, rate_at, save
from tests.examples.running import run


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_imagenet_resnet_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = ["--checkpoint-folder", str(tmp_path), "--depth", "10", "--width", "4", "--images", "320"]
    first = run(1, "imagenet_resnet", *words, "--epochs", "1")
    assert first.startswith("epoch 1: rate")
    # Three batches a step, which do not divide the eight or ten of an epoch.
    second = run(2, "imagenet_resnet", *words, "--epochs", "3", "--batches-per-allreduce", "3", "--fp16-allreduce")
    assert [line.split(":")[0] for line in second.splitlines()] == ["epoch 2", "epoch 3"]
    third = run(4, "imagenet_resnet", *words, "--epochs", "5", "--batch-size", "8")
    assert [line.split(":")[0] for line in third.splitlines()] == ["epoch 4", "epoch 5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"epoch-{number}.pt" for number in range(1, 6)]
    assert float(third.rsplit("accuracy ", 1)[1]) > 0.5
    assert not run(2, "imagenet_resnet", *words, "--epochs", "5")


def test_warm_up_and_steps_down() -> None:
    rates = [rate_at(epoch, 0.1, 8, 5, [30, 60]) for epoch in (0, 2.5, 5, 29.9, 30, 60)]
    assert rates == pytest.approx([0.1, 0.45, 0.8, 0.8, 0.08, 0.008])


def test_the_last_checkpoint_is_the_one_of_most_epochs(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") == (0, None)
    model = torch.nn.Linear(2, 1)
    for epochs in (2, 10, 9):
        save(tmp_path / "folder", epochs, model, torch.optim.SGD(model.parameters(), lr=0.1))
    (tmp_path / "folder" / "epoch-11.part").touch()  # of an interrupted write
    (tmp_path / "folder" / "best.pt").touch()
    assert latest_checkpoint(tmp_path / "folder") == (10, tmp_path / "folder" / "epoch-10.pt")


def test_images_repeat_and_share_patterns_between_sets() -> None:
    training, held_out = (PatternedImages(6, classes=3, size=4, seed=seed) for seed in (1, 2))
    image, kind = training[4]
    assert image.shape == (3, 4, 4) and kind == 1 and len(training) == 6
    assert torch.equal(image, training[4][0])
    assert not torch.equal(image, held_out[4][0])
    assert torch.equal(training._patterns, held_out._patterns)
