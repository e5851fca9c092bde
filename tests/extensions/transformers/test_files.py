"""A model's folder: transformers loads it without this package, and what is damaged or of another kind is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator import DataError, TransformersModel
from tests.estimators.conftest import rewritten
from tests.scenarios.huggingface import tiny


def model(net: Any, **values: Any) -> TransformersModel:
    options: dict[str, Any] = {"task": "classification", "labels": ["bad", "good"], "feature_columns": ["text"]}
    return TransformersModel(model=net, **{"tokenizer": tiny.tokenizer(), **options, **values})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "classifier"
    model(tiny.classifier(), label_type="string", batch_size=7, max_length=20).save(str(folder))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    import shutil

    return shutil.copytree(saved, tmp_path / "copy")


def test_a_model_comes_back(saved: Path) -> None:
    before = model(tiny.classifier())
    loaded = TransformersModel.load(str(saved))
    assert (loaded.getBatchSize(), loaded.getMaxLength(), loaded.getLabels()) == (7, 20, ["bad", "good"])
    assert loaded.uid == json.loads((saved / "spark_estimator.json").read_text())["uid"]
    texts = [row["text"] for row in tiny.sentences(3)]
    assert loaded.predict(texts) == before.predict(texts)
    for mine, theirs in zip(loaded.getModel().parameters(), before.getModel().parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not loaded.getModel().training


def test_transformers_loads_it_without_this_package(saved: Path) -> None:
    import transformers

    net = transformers.AutoModelForSequenceClassification.from_pretrained(saved, local_files_only=True)
    assert torch.equal(net.classifier.weight, tiny.classifier().classifier.weight)
    words = transformers.AutoTokenizer.from_pretrained(saved, local_files_only=True)
    assert words("the cat")["input_ids"] == tiny.tokenizer()("the cat")["input_ids"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_that_have_changed_or_are_gone(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=name):
        TransformersModel.load(str(folder))
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        TransformersModel.load(str(folder))


@pytest.mark.parametrize("task", [None, "regression", ["causal"]])
def test_a_task_that_is_not_known(folder: Path, task: Any) -> None:
    manifest = json.loads((folder / "spark_estimator.json").read_text())
    manifest["params"]["task"] = task
    (folder / "spark_estimator.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="params"):
        TransformersModel.load(str(folder))


def test_a_tokenizer_that_is_none(folder: Path) -> None:
    rewritten(folder, "tokenizer.json", b"{}")
    with pytest.raises(DataError, match=r"its tokenizer can't be read: "):
        TransformersModel.load(str(folder))


@pytest.mark.parametrize("params", [{"batch_size": 0}, {"batch_size": "7"}, {"unknown": 1}])
def test_parameters_that_do_not_fit(folder: Path, params: dict[str, Any]) -> None:
    manifest = json.loads((folder / "spark_estimator.json").read_text())
    manifest["params"].update(params)
    (folder / "spark_estimator.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=next(iter(params))):
        TransformersModel.load(str(folder))


def test_folders_of_something_else(tmp_path: Path, classifier_folder: str) -> None:
    with pytest.raises(DataError, match="nothing"):
        TransformersModel.load(str(tmp_path / "nothing"))
    with pytest.raises(DataError, match=r"spark_estimator\.json"):
        TransformersModel.load(classifier_folder)


def test_an_adapter_needs_its_base(classifier_folder: str, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(classifier_folder)
    net = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    torch.nn.init.constant_(next(value for name, value in net.named_parameters() if "lora_B" in name), 0.5)
    net.peft_config["default"].base_model_name_or_path = str(tmp_path / "moved")
    before = model(net)
    folder = tmp_path / "adapter"
    before.save(str(folder))
    assert not (folder / "model.safetensors").exists()
    with pytest.raises(DataError, match=r"is an adapter of '.*moved': pass base='folder of that model'"):
        TransformersModel.load(str(folder), trust=True)
    loaded = TransformersModel.load(str(folder), base=classifier_folder)
    ids = torch.tensor([[2, 8, 9, 3]])
    with torch.no_grad():
        assert torch.equal(loaded.getModel()(ids).logits, net.eval()(ids).logits)


def test_the_tokenizer_is_saved_with_the_token_that_fills_up_rows(tmp_path: Path) -> None:
    import transformers

    words = tiny.tokenizer()
    words.pad_token = None
    made = model(tiny.classifier(), tokenizer=words)
    made.save(str(tmp_path / "model"))
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert saved.pad_token_id == made.getModel().config.pad_token_id is not None
    assert words.pad_token is None
