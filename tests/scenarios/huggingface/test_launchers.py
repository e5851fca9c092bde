"""Accelerate and the Trainer in every launcher of this package: they find all ranks, without a line of set-up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner, TorchDistributor
from spark_estimator.launch.cli.main import run_command
from tests.scenarios.huggingface.rank_pool import OFFLINE

SCRIPT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(1)
config = LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
rows = [{"input_ids": [1, 2, 3 + number % 4], "labels": [1, 2, 3 + number % 4]} for number in range(16)]
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=2, max_steps=3, report_to="none", disable_tqdm=True
)
trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows)
trainer.train()
trainer.save_model()
with open(f"{sys.argv[1]}/rank{arguments.process_index}", "w") as file:
    file.write(f"{arguments.world_size} {trainer.model.lm_head.weight.sum().item()}")
"""


def agree(folder: Path) -> bool:
    first, second = ((folder / f"rank{rank}").read_text() for rank in range(2))
    return first == second and first.startswith("2 ") and (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_a_script_with_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for name in ("command", "distributor"):
        (tmp_path / name).mkdir()
    assert run_command([sys.executable, str(script), str(tmp_path / "command")], 2, OFFLINE) == 0
    TorchDistributor(num_processes=2, use_gpu=False).run(str(script), str(tmp_path / "distributor"))
    assert agree(tmp_path / "command")
    assert agree(tmp_path / "distributor")


def accelerated(scale: float) -> Any:
    """A function from Accelerate's own documentation."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1, bias=False)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.full((1, 1), scale * accelerator.process_index)).sum())
    gradient = accelerator.unwrap_model(model).weight.grad.item()
    accelerator.end_training()
    return accelerator.num_processes, gradient


@pytest.mark.parametrize("launcher", ["HorovodRunner", pytest.param("TorchDistributor", marks=pytest.mark.slow)])
def test_a_function_with_accelerate(launcher: str) -> None:
    """Accelerate treats a rank without a GPU as a single process, unless a variable declares a job on CPUs."""
    if launcher == "HorovodRunner":
        assert HorovodRunner(np=-2).run(accelerated, scale=3.0) == (2, 1.5)
    else:
        assert TorchDistributor(num_processes=2, use_gpu=False).run(accelerated, 3.0) == (2, 1.5)


@pytest.mark.slow
def test_spark_tasks(spark: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert TorchDistributor(num_processes=2, local_mode=False, use_gpu=False).run(accelerated, 3.0) == (2, 1.5)
