"""The benchmark of training steps runs, checks its numbers, and prints a line for each model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import training
from benchmarks.training_rank import MODELS

pytestmark = pytest.mark.slow


@pytest.mark.timeout(240)
@pytest.mark.parametrize("channel", [[], ["--tcp"]])
def test_prints_a_line_for_each_model(channel: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    training.main(["--model", "mlp,transformer", "--seconds", "0.1", "--json", str(file), *channel])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in MODELS] == ["mlp", "transformer"]
    assert any("in hooks:" in " ".join(row) for row in rows)
    results = json.loads(file.read_text())["results"]
    for result in results:
        figures = result["subjects"]
        for column, of in (("exposed", "ours"), ("ddp exposed", "ddp")):
            assert figures[column]["us"] == pytest.approx(max(0.1, figures[of]["us"] - figures["none"]["us"]))


@pytest.mark.timeout(240)
def test_a_quota_of_processor_time_ends_with_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    groups = Path("/proc/self/cgroup")
    before = groups.read_text()
    try:
        training.main(["--model", "mlp", "--seconds", "0.1", "--quota", "1.5"])
        assert "within 1.5 CPUs" in capsys.readouterr().out
    except SystemExit as refused:  # no control groups here, or not as this user
        assert "--quota 1.5 needs a control group" in str(refused)
    assert groups.read_text() == before
    assert not list(Path("/sys/fs/cgroup").glob("**/spark_estimator_benchmark_*"))


@pytest.mark.timeout(240)
def test_fine_tuning_beside_ddp_over_both_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft", reason="the extra 'transformers' is not installed")
    file = tmp_path / "figures.json"
    training.main(["--model", "llama,lora", "--seconds", "0.1", "--json", str(file)])
    assert "group/ddp" in capsys.readouterr().out
    for result in json.loads(file.read_text())["results"]:
        assert all(result["subjects"][name]["us"] > 0 for name in ("none", "ours", "ddp", "group"))


@pytest.mark.timeout(240)
def test_lightnings_steps_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    file = tmp_path / "figures.json"
    training.main(["--model", "mlp", "--lightning", "--seconds", "0.1", "--json", str(file)])
    assert "lightning_ours/ours" in capsys.readouterr().out
    figures = json.loads(file.read_text())["results"][0]["subjects"]
    assert all(figures[f"lightning_{name}"]["us"] > 0 for name in ("none", "ours", "ddp"))


@pytest.mark.timeout(300)
def test_tensorflows_steps_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")
    file = tmp_path / "figures.json"
    training.main(["--model", "resnet50", "--tensorflow", "--seconds", "0.1", "--json", str(file)])
    assert "mwms exposed/exposed" in capsys.readouterr().out
    figures = json.loads(file.read_text())["results"][0]["subjects"]
    for column, of, alone in (("mwms exposed", "tf_mwms", "tf_none"), ("keras exposed", "keras_ours", "keras_none")):
        assert figures[column]["us"] == pytest.approx(max(0.1, figures[of]["us"] - figures[alone]["us"]))


def test_sizes_are_those_of_the_models() -> None:
    for name, model in MODELS.items():
        with torch.device("meta"):
            made = model.make()
        sizes = [parameter.numel() * 4 for parameter in made.parameters() if parameter.requires_grad]
        assert sum(sizes) == training.MODELS[name]
    with torch.device("meta"):
        assert len(list(MODELS["resnet50"].make().parameters())) == 161
        assert len(list(MODELS["mlp"].make().parameters())) == 200
