"""The defaults are those of transformers' Trainer: it has the same losses in 200 steps, on one rank and on two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from spark_estimator import TransformersEstimator
from spark_estimator.estimators.torch.callbacks import Callback
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS, PASSES, ROWS = 200, 2, 4  # rows of a pass, of all ranks
LENGTH = 8


class Recording(Callback):
    """Writes the tokens and the loss of each batch to a file of its rank."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def on_train_begin(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        import spark_estimator.torch as hvd

        self._file = Path(self._folder, f"rank-{hvd.rank()}")
        self._rows: list[list[int]] = []
        model.register_forward_pre_hook(self._see)

    def _see(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._rows = inputs[0].tolist()

    def on_batch_end(self, step: int, loss: float) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps([self._rows, loss]) + "\n")


def run_trainer(rows: list[list[int]], folder: Path) -> list[float]:
    """The losses of each pass of a default Trainer."""
    from transformers import Trainer, TrainingArguments

    losses: list[float] = []

    class Ordered(Trainer):
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            losses.append(float(loss.detach()))
            return loss

    data = [{"input_ids": row, "labels": row, "attention_mask": [1] * len(row)} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=PASSES,
        num_train_epochs=1,
        warmup_steps=0.1,
        weight_decay=0.1,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Ordered(tiny.causal(), arguments, train_dataset=data).train()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_losses_are_the_trainer_s(spark: SparkSession, causal_folder: str, tmp_path: Path, size: int) -> None:
    # All rows have as many labels, so that means of rows, passes and ranks are those of labels.
    words = " ".join(tiny.ANIMALS).split()
    texts = [" ".join(words[(number * step) % 6] for step in range(1, LENGTH - 2)) for number in range(400)]
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    TransformersEstimator(
        num_proc=size,
        model=causal_folder,
        packing=False,
        max_length=LENGTH,
        batch_size=ROWS // size,
        backward_passes_per_step=PASSES,
        epochs=STEPS * PASSES * ROWS // len(texts),
        learning_rate=1e-3,
        weight_decay=0.1,
        warmup_ratio=0.1,
        random_seed=1,
        verbose=0,
        callbacks=[Recording(str(recorded))],
    ).fit(spark.createDataFrame([(text,) for text in texts], "text string").repartition(1))
    of_ranks = [
        [json.loads(line) for line in (recorded / f"rank-{rank}").read_text().splitlines()] for rank in range(size)
    ]
    rows = [row for of_pass in zip(*of_ranks, strict=True) for batch, _ in of_pass for row in batch]
    ours = [sum(loss for _, loss in of_pass) / size for of_pass in zip(*of_ranks, strict=True)]
    assert len(ours) == STEPS * PASSES and all(len(row) == len(rows[0]) and min(row) >= 0 for row in rows)
    theirs = run_trainer(rows, tmp_path / "trainer")
    # The Trainer divides the sum over a pass by the labels of the whole step.
    assert ours == pytest.approx([loss * PASSES for loss in theirs], rel=1e-5, abs=1e-5)
    assert sum(ours[-20:]) < 0.7 * sum(ours[:20])
