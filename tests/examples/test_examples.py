"""The examples run as their first lines say, on one, two and four ranks, and come to what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(size: int, example: str, *words: str) -> str:
    """What rank 0 prints."""
    command = [sys.executable, "-m", "spark_estimator", "run", "-np", str(size)]
    answer = subprocess.run(
        [*command, sys.executable, "-m", f"spark_estimator.examples.{example}", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = [line.removeprefix("[0]<stdout>:") for line in answer.stdout.splitlines() if line.startswith("[0]<stdout>")]
    return "\n".join(lines)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("size", "words"),
    [
        (1, []),
        (2, ["--fp16-allreduce"]),
        (2, ["--use-adasum"]),
        (4, ["--gradient-predivide-factor", "2", "--batch-size", "16", "--lr", "0.025"]),
    ],
)
def test_digits(size: int, words: list[str]) -> None:
    reached = re.findall(r"accuracy on held-out images ([0-9.]+)", run(size, "digits", "--epochs", "6", *words))
    assert len(reached) == 6
    assert float(reached[-1]) > 0.9


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_elastic_digits(size: int) -> None:
    # That it outlives its ranks is tested where elastic training is.
    reached = re.findall(
        r"on (\d) ranks: accuracy ([0-9.]+)",
        run(size, "elastic_digits", "--epochs", "5", "--batch-size", "16", "--lr", "0.03"),
    )
    assert [int(ranks) for ranks, _ in reached] == [size] * 5
    assert float(reached[-1][1]) > 0.85


@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_synthetic_benchmark(size: int) -> None:
    small = ["--model", "resnet10", "--width", "4", "--image-size", "32", "--batch-size", "2"]
    printed = run(
        size,
        "synthetic_benchmark",
        *small,
        "--num-warmup-batches",
        "1",
        "--num-batches-per-iter",
        "1",
        "--num-iters",
        "2",
    )
    found = re.search(r"a rank: ([0-9.]+) \+- [0-9.]+ images a second; (\d) ranks: ([0-9.]+)", printed)
    assert found, printed
    assert int(found[2]) == size
    assert float(found[3]) > 0


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
    from spark_estimator.examples.imagenet_resnet import rate_at

    rates = [rate_at(epoch, 0.1, 8, 5, [30, 60]) for epoch in (0, 2.5, 5, 29.9, 30, 60)]
    assert rates == pytest.approx([0.1, 0.45, 0.8, 0.8, 0.08, 0.008])


def test_resnet_50_has_its_parameters() -> None:
    import torch

    from spark_estimator.examples.resnet import resnet

    with torch.device("meta"):
        model = resnet(50, classes=1000)
    # As published, with two numbers for each channel of a batch norm, and no bias in convolutions.
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert len(list(model.parameters())) == 161
