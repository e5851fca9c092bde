"""LoRA by peft and SFT by trl, unchanged, on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.huggingface import tiny
from tests.scenarios.huggingface.rank_pool import RankPool
from tests.scenarios.huggingface.test_trainer import BACKENDS, arguments, assert_same, tokenised, weights


def lora(folder: str) -> Any:
    """Trains an adapter, saves it, and loads it with plain peft."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, set_seed

    set_seed(3)
    model = get_peft_model(
        tiny.causal(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", lora_dropout=0.0)
    )
    trainer = Trainer(
        model=model,
        args=arguments(folder, learning_rate=1.0, gradient_checkpointing=True),
        train_dataset=tokenised(tiny.sentences(64), label=False),
        data_collator=DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
    )
    trainer.train()
    trainer.save_model(folder)
    trainer.accelerator.wait_for_everyone()
    loaded = PeftModel.from_pretrained(tiny.causal(), folder)
    text = torch.tensor([[2, 8, 9, 10]])
    torch.testing.assert_close(loaded(text).logits, trainer.model.eval()(text).logits)
    return {name: value for name, value in weights(trainer.model).items() if "lora_" in name}


@pytest.mark.parametrize("backend", BACKENDS)
def test_lora_is_training_on_the_joint_batch(
    two_ranks: RankPool, alone: RankPool, tmp_path: Path, backend: str
) -> None:
    first, second = two_ranks.run(lora, str(tmp_path / "two"), backend)
    (single,) = alone.run(lora, str(tmp_path / "one"))
    assert any(value.abs().max() > 1e-3 for name, value in first.items() if "lora_B" in name)
    assert_same(first, single)
    assert_same(first, second, 0)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in (tmp_path / "two").iterdir()}


def supervised(folder: str, **options: Any) -> Any:
    """Supervised fine-tuning on conversations."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    plain = arguments(folder, bf16=False)
    trainer = SFTTrainer(
        model=tiny.causal(),
        args=SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=plain.per_device_train_batch_size,
            max_steps=6,
            learning_rate=0.1,
            optim="sgd",
            bf16=False,
            max_length=48,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=3,
            seed=3,
            **options,
        ),
        train_dataset=Dataset.from_list(tiny.chats(64)),
        processing_class=tiny.tokenizer(),
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "weights": weights(trainer.model),
        "losses": [entry["loss"] for entry in logged],
        "tokens": logged[-1]["num_tokens"],
    }


@pytest.mark.slow
def test_supervised_fine_tuning(two_ranks: RankPool, alone: RankPool, tmp_path: Path) -> None:
    pytest.importorskip("trl")
    first, second = two_ranks.run(supervised, str(tmp_path / "two"), "spark_estimator")
    (single,) = alone.run(supervised, str(tmp_path / "one"))
    assert_same(first["weights"], second["weights"], 0)
    assert_same(first["weights"], single["weights"])
    assert first["tokens"] == second["tokens"] == single["tokens"]
    assert first["losses"] == pytest.approx(single["losses"], rel=1e-3)
