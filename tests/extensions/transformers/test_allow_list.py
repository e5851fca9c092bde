"""Folders of a `TransformersModel` that an attacker has changed: none has code run, or reads another folder."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator import DataError, TransformersModel, trust_files
from spark_estimator.extensions.transformers.module import make_net
from spark_estimator.extensions.transformers.pretrained import Pretrained
from tests.estimators.conftest import Poison, rewritten, saved_by_torch
from tests.extensions.transformers.test_files import model
from tests.extensions.transformers.test_tokens import CLASSES
from tests.scenarios.huggingface import tiny

IDS = torch.tensor([[2, 8, 9, 3]])


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory, classifier_folder: str) -> Path:
    """A whole model, and an adapter of `classifier_folder`."""
    folder = tmp_path_factory.mktemp("originals")
    model(tiny.classifier()).save(str(folder / "whole"))
    model(make_net(Pretrained.from_parameter(classifier_folder), CLASSES, {"r": 2}, tiny.tokenizer())).save(
        str(folder / "adapter")
    )
    return folder


@pytest.fixture
def whole(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "whole", tmp_path / "whole")


@pytest.fixture
def adapter(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "adapter", tmp_path / "adapter")


@pytest.fixture
def hostile_module(tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module whose import leaves the marker; peft allows modules of the package megatron."""
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "hostile.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "megatron.hostile"
    for name in ("megatron", "megatron.hostile"):
        sys.modules.pop(name, None)


def changed(folder: Path, name: str, **values: Any) -> str:
    """The folder, with other values in one of its JSON files."""
    rewritten(folder, name, json.dumps({**json.loads((folder / name).read_text()), **values}).encode())
    return str(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("trust", [False, True])
def test_python_files_are_not_run_and_nobody_is_asked(
    whole: Path, marker: Path, monkeypatch: pytest.MonkeyPatch, name: str, trust: bool
) -> None:
    monkeypatch.setattr("builtins.input", lambda *words: "y")
    rewritten(whole, "evil.py", f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass Kind: pass".encode())
    kinds = {"AutoConfig": "evil.Kind", "AutoTokenizer": [None, "evil.Kind"]}
    changed(whole, name, auto_map=kinds, tokenizer_class="Kind")
    changed(whole, "config.json", model_type="evil", auto_map=kinds)
    with pytest.raises(DataError, match=r"can't be read|can't be loaded"):
        TransformersModel.load(str(whole), trust=trust)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.json", {"attn_implementation": "evil/kernels"}),
        ("config.json", {"_attn_implementation": "evil/kernels:attention"}),
        ("config.json", {"_attn_implementation_internal": "evil/kernels"}),
        ("config.json", {"text_config": {"experts_implementation": "evil/kernels"}}),
        ("config.json", {"attn_implementation": {"text_config": "evil/kernels"}}),
        ("config.json", {"layers": [{"trust_remote_code": True}]}),
        ("config.json", {"quantization_config": {"quant_method": "quark"}}),
        ("config.json", {"transformers_weights": "adapter_model.bin"}),
        ("config.json", {"model_args": {"checkpoint_path": "/evil.pth"}}),
        ("config.json", {"architecture": "hf-hub:evil/model"}),
        ("config.json", {"backbone": "local-dir:/evil"}),
        ("config.json", {"use_pretrained_backbone": True}),
        ("config.json", {"tokenizer_class": "AutoModelForCausalLM"}),
        ("tokenizer_config.json", {"tokenizer_class": "AutoModelForCausalLMFast"}),
        ("tokenizer_config.json", {"tokenizer_class": "RagRetriever"}),
    ],
)
def test_settings_that_load_something_else(whole: Path, name: str, values: dict[str, Any]) -> None:
    setting = next(iter(values)) if not isinstance(next(iter(values.values())), list) else "trust_remote_code"
    setting = "experts_implementation" if setting == "text_config" else setting
    with pytest.raises(DataError, match=rf"{name} could have any code loaded: .*{setting} is .*Pass trust=True"):
        TransformersModel.load(changed(whole, name, **values))


def test_settings_of_transformers_own(whole: Path) -> None:
    TransformersModel.load(changed(whole, "config.json", attn_implementation="eager", quantization_config=None))
    vision = {"architecture": "mobilenetv5_300m_enc", "model_args": None, "use_pretrained_backbone": False}
    TransformersModel.load(changed(whole, "config.json", vision_config=vision))


@pytest.mark.parametrize("file", ["../numbers.safetensors", "/numbers.safetensors", "pytorch_model.bin", ["x"]])
def test_numbers_are_those_of_the_folder(whole: Path, file: Any) -> None:
    index = {"metadata": {}, "weight_map": {"classifier.weight": file}}
    rewritten(whole, "model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(DataError, match=r"index\.json (could have any code loaded: it names the file|cannot be read)"):
        TransformersModel.load(str(whole))


def test_an_adapter_beside_the_files_is_not_read(whole: Path, adapter: Path) -> None:
    """transformers takes a folder with such a file for an adapter, and loads the base that it names."""
    expected = TransformersModel.load(str(whole)).getModel()(IDS).logits
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "evil/base"
    (whole / "adapter_config.json").write_text(json.dumps(config))
    loaded = TransformersModel.load(str(whole))
    assert torch.equal(loaded.getModel()(IDS).logits, expected)


def test_files_have_names_of_their_folder(whole: Path) -> None:
    for name in ("../x.json", "/x.json", "..", ""):
        manifest = json.loads((whole / "spark_estimator.json").read_text())
        manifest["sha256"][name] = "0"
        (whole / "spark_estimator.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError, match="'sha256' must be an object from names of files to texts"):
            TransformersModel.load(str(whole))


def test_an_adapter_s_base_is_named_by_the_user(adapter: Path, classifier_folder: str) -> None:
    with pytest.raises(DataError, match=rf"is an adapter of '{classifier_folder}': pass base='{classifier_folder}'"):
        TransformersModel.load(str(adapter))
    with pytest.raises(DataError, match=r"is an adapter of 'evil/base': pass base='evil/base', or"):
        TransformersModel.load(changed(adapter, "adapter_config.json", base_model_name_or_path="evil/base"))
    changed(adapter, "adapter_config.json", base_model_name_or_path=classifier_folder)
    expected = TransformersModel.load(str(adapter), base=classifier_folder).getModel()(IDS).logits
    with trust_files():
        assert torch.equal(TransformersModel.load(str(adapter)).getModel()(IDS).logits, expected)


def test_an_adapter_imports_no_module(adapter: Path, marker: Path, hostile_module: str, classifier_folder: str) -> None:
    changed(adapter, "adapter_config.json", megatron_config={"hidden_size": 1}, megatron_core=hostile_module)
    with pytest.raises(DataError, match=r"adapter_config\.json could have any code loaded: megatron_config is"):
        TransformersModel.load(str(adapter), base=classifier_folder)
    assert not marker.exists()
    with pytest.raises(AttributeError):
        TransformersModel.load(str(adapter), base=classifier_folder, trust=True)
    assert marker.exists(), "it is a folder that runs code, if it is trusted"


@pytest.mark.parametrize(
    ("values", "flaw"),
    [
        ({"peft_type": "PROMPT_TUNING"}, "its peft_type is 'PROMPT_TUNING', not 'LORA'"),
        ({"corda_config": {"covariance_file": "/other.pt"}}, "corda_config is"),
        ({"unknown": "value"}, "unknown is 'value'"),
    ],
)
def test_other_settings_of_adapters(adapter: Path, values: dict[str, Any], flaw: str, classifier_folder: str) -> None:
    with pytest.raises(DataError, match=flaw):
        TransformersModel.load(changed(adapter, "adapter_config.json", **values), base=classifier_folder)


def test_an_adapter_may_tie_weights(adapter: Path, classifier_folder: str) -> None:
    path = changed(adapter, "adapter_config.json", ensure_weight_tying=True)
    TransformersModel.load(path, base=classifier_folder)


def test_an_adapter_s_pickled_numbers_are_not_read(adapter: Path, marker: Path, classifier_folder: str) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    rewritten(adapter, "adapter_model.bin", saved_by_torch(Poison(marker)))
    manifest = json.loads((adapter / "spark_estimator.json").read_text())
    del manifest["sha256"]["adapter_model.safetensors"]
    (adapter / "spark_estimator.json").write_text(json.dumps(manifest))
    for trust in (False, True):
        with pytest.raises(DataError, match=r"is an adapter without adapter_model\.safetensors"):
            TransformersModel.load(str(adapter), base=classifier_folder, trust=trust)
    assert not marker.exists()


def test_a_loaded_model_knows_its_own_folder(originals: Path, tmp_path: Path) -> None:
    words = tiny.tokenizer()
    words.chat_template = {"default": "{{ messages[0].content }}", "other": "{{ messages }}"}
    model(tiny.classifier(), tokenizer=words).save(str(tmp_path / "model"))
    loaded = TransformersModel.load(str(tmp_path / "model"))
    tokenizer = loaded._value("tokenizer")
    assert tokenizer.chat_template == words.chat_template
    assert {tokenizer.name_or_path, loaded.getModel().config.name_or_path} == {str(tmp_path / "model")}
