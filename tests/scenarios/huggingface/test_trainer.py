"""The Trainer of transformers, unchanged, on two ranks: the numbers of one process with the joint batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.scenarios.huggingface import tiny
from tests.scenarios.huggingface.rank_pool import RankPool

BACKENDS = [pytest.param("gloo", marks=pytest.mark.slow), "spark_estimator"]


def assert_same(first: dict[str, Any], second: dict[str, Any], tolerance: float = 2e-5) -> None:
    """The same weights, to what sums in another order may differ by."""
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=tolerance, atol=tolerance, msg=f"{name} differs")


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def arguments(folder: str, **options: Any) -> Any:
    """The arguments of a Trainer whose ranks take eight rows a step together."""
    from transformers import TrainingArguments

    chosen = TrainingArguments(output_dir=folder)
    return TrainingArguments(
        **{
            "output_dir": folder,
            "per_device_train_batch_size": 8 // chosen.world_size,
            "per_device_eval_batch_size": 4,
            "max_steps": 6,
            "learning_rate": 0.1,
            "optim": "sgd",  # Adam divides by gradients, and so makes much of the order of sums
            "logging_steps": 2,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "seed": 3,
            **options,
        }
    )


def tokenised(rows: list[dict[str, Any]], *, label: bool = True) -> Any:
    from datasets import Dataset

    words = tiny.tokenizer()
    data = Dataset.from_list(rows).map(lambda batch: words(batch["text"]), batched=True)
    return data.remove_columns(["text"] if label else ["text", "label"])


def classification(folder: str) -> Any:
    """Trains a classifier; its 13 rows of evaluation do not divide by the ranks' batches."""
    import numpy
    from transformers import DataCollatorWithPadding, Trainer

    def metrics(prediction: Any) -> dict[str, float]:
        right = numpy.argmax(prediction.predictions, axis=-1) == prediction.label_ids
        return {"accuracy": right.mean(), "rows": len(right)}

    trainer = Trainer(
        model=tiny.classifier(),
        # transformers 5.24 otherwise multiplies the loss of a classifier by the number of ranks, with any launcher.
        args=arguments(folder, average_tokens_across_devices=False),
        train_dataset=tokenised(tiny.sentences(64)),
        eval_dataset=tokenised(tiny.sentences(13, seed=1)),
        data_collator=DataCollatorWithPadding(tiny.tokenizer()),
        compute_metrics=metrics,
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    evaluated = trainer.evaluate()
    return {
        "weights": weights(trainer.model),
        "losses": logged,
        "evaluated": {name: evaluated[f"eval_{name}"] for name in ("accuracy", "rows")},
        "world": trainer.args.world_size,
        "backend": torch.distributed.get_backend() if torch.distributed.is_initialized() else None,
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_classification_is_training_on_the_joint_batch(
    two_ranks: RankPool, alone: RankPool, tmp_path: Path, backend: str
) -> None:
    first, second = two_ranks.run(classification, str(tmp_path), backend)
    (single,) = alone.run(classification, str(tmp_path))
    assert (first["world"], first["backend"], single["world"]) == (2, backend, 1)
    assert_same(first["weights"], single["weights"])
    assert_same(first["weights"], second["weights"], 0)
    assert first["losses"] == pytest.approx(single["losses"], rel=1e-3)
    assert first["evaluated"] == second["evaluated"] == single["evaluated"]
    assert first["evaluated"]["rows"] == 13


def language(folder: str, accumulated: int = 1, resume: bool = False, **options: Any) -> Any:
    """Trains a language model on sentences of different lengths; its loss is a mean over the words of a step."""
    from transformers import DataCollatorForLanguageModeling, Trainer

    world = arguments(folder).world_size
    trainer = Trainer(
        model=tiny.causal(),
        args=arguments(
            folder,
            per_device_train_batch_size=8 // world // accumulated,
            gradient_accumulation_steps=accumulated,
            **options,
        ),
        train_dataset=tokenised(tiny.sentences(64), label=False),
        data_collator=DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
    )
    result = trainer.train(resume_from_checkpoint=resume or None)
    return {"weights": weights(trainer.model), "steps": result.global_step}


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_accumulation_is_the_joint_batch(
    two_ranks: RankPool, alone: RankPool, tmp_path: Path, backend: str
) -> None:
    first, second = two_ranks.run(language, str(tmp_path), backend, 2)
    (single,) = alone.run(language, str(tmp_path))
    assert_same(first["weights"], single["weights"])
    assert_same(first["weights"], second["weights"], 0)


@pytest.mark.slow
def test_resume_from_a_checkpoint(two_ranks: RankPool, tmp_path: Path) -> None:
    def resumed(folder: str) -> Any:
        return language(folder, resume=True)

    def saving(folder: str) -> Any:
        return language(folder, save_strategy="steps", save_steps=4)

    whole = two_ranks.run(saving, str(tmp_path), "spark_estimator")[0]
    shutil.rmtree(tmp_path / "checkpoint-6")  # as if the training had ended after four steps
    names = {path.name for path in (tmp_path / "checkpoint-4").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "model.safetensors", "optimizer.pt"} <= names
    for result in two_ranks.run(resumed, str(tmp_path), "spark_estimator"):
        assert result["steps"] == 6
        assert_same(result["weights"], whole["weights"], 0)
