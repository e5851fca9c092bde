"""Adapters contain what their pretrained model lacks, and name where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TransformersModel
from spark_estimator.extensions.transformers.adapter import find_new_modules, get_base_dtype
from spark_estimator.extensions.transformers.module import TextModule, make_net
from spark_estimator.extensions.transformers.pretrained import Pretrained
from tests.extensions.transformers.conftest import saved
from tests.extensions.transformers.test_files import model
from tests.extensions.transformers.test_pretrained import cached
from tests.extensions.transformers.test_tokens import CAUSAL, CLASSES
from tests.scenarios.huggingface import tiny

TEXTS = [row["text"] for row in tiny.sentences(8)]


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model without a classifier and its pooler."""
    from transformers import BertForMaskedLM

    torch.manual_seed(1)
    return saved(tmp_path_factory.mktemp("headless"), BertForMaskedLM(tiny.classifier().config))


@pytest.mark.parametrize("targets", [{}, {"target_modules": "all-linear"}], ids=["default", "all layers"])
def test_what_the_pretrained_model_lacks_is_trained_and_saved(
    headless: str, tmp_path: Path, targets: dict[str, Any]
) -> None:
    import peft
    from transformers import AutoModelForSequenceClassification

    source, lora = Pretrained.from_parameter(headless), {"r": 2, **targets}
    net = make_net(source, CLASSES, lora, tiny.tokenizer())
    state = TextModule(net, CLASSES).state_dict()
    assert any("pooler.dense" in name and name.endswith("weight") for name in state)
    other = TextModule(make_net(source, CLASSES, lora, tiny.tokenizer()), CLASSES)
    other.load_state_dict(state)
    ids = torch.tensor([[2, 8, 9, 3]])
    expected = net.eval()(ids).logits
    assert torch.equal(other.net.eval()(ids).logits, expected), "as the driver takes what rank 0 has trained"
    model(net).save(str(tmp_path / "adapter"))
    loaded = TransformersModel.load(str(tmp_path / "adapter"), base=headless).getModel()
    assert torch.equal(loaded(ids).logits, expected)
    base = AutoModelForSequenceClassification.from_pretrained(headless)
    plain = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.equal(plain(ids).logits, expected)


def test_modules_of_the_user_are_saved_with_the_new_ones(headless: str) -> None:
    net: Any = make_net(
        Pretrained.from_parameter(headless), CLASSES, {"r": 2, "modules_to_save": ["embeddings"]}, tiny.tokenizer()
    )
    assert {"embeddings", "bert.pooler.dense"} <= set(net.peft_config["default"].modules_to_save)


def test_a_new_parameter_beside_pretrained_modules_is_refused() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    net.register_parameter("scale", nn.Parameter(torch.ones(1)))
    assert find_new_modules(net, ["0.bias"]) == ["0"]
    assert find_new_modules(net, []) == []
    with pytest.raises(DataError, match="the pretrained model has no scale, which would be random"):
        find_new_modules(net, ["scale"])


def test_an_adapter_on_numbers_of_half_precision_is_loaded_as_it_was_trained(tmp_path: Path) -> None:
    folder = saved(tmp_path / "base", tiny.causal().to(torch.bfloat16))
    net: Any = make_net(Pretrained.from_parameter(folder), CAUSAL, {"r": 2}, tiny.tokenizer())
    assert get_base_dtype(net) == "float32"
    model(net, task="causal", labels=None).save(str(tmp_path / "adapter"))
    loaded = TransformersModel.load(str(tmp_path / "adapter"), base=folder)
    assert {parameter.dtype for parameter in loaded.getModel().parameters()} == {torch.float32}
    ids = torch.tensor([[2, 8, 9, 3]])
    assert torch.equal(loaded.getModel()(ids).logits, net.eval()(ids).logits)
    manifest = tmp_path / "adapter" / "spark_estimator.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "base_dtype": "int8"}))
    with pytest.raises(DataError, match="'base_dtype' must be one of float32"):
        TransformersModel.load(str(tmp_path / "adapter"), base=folder)


def test_an_adapter_names_the_model_of_the_hub(
    causal_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cached(tmp_path / "hub", causal_folder, "zoo/animals")
    net = make_net(Pretrained.from_parameter("zoo/animals"), CAUSAL, {"r": 2}, tiny.tokenizer())
    model(net, task="causal", labels=None).save(str(tmp_path / "adapter"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("zoo/animals", "0" * 40)
    (tmp_path / "hub").rename(tmp_path / "elsewhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere" / "models--zoo--animals" / "refs" / "main").write_text("1" * 40)
    loaded = TransformersModel.load(str(tmp_path / "adapter"), trust=True)
    assert torch.equal(loaded.getModel()(torch.tensor([[2, 8]])).logits, net.eval()(torch.tensor([[2, 8]])).logits)
