"""Models of transformers as modules: padding and packing change no score, an adapter's state is the adapter."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.estimators.torch.losses import compute_loss
from spark_estimator.estimators.torch.steps.recipe import PLAIN
from spark_estimator.extensions.transformers.module import TextModule, check_causal, check_packing, make_net
from spark_estimator.extensions.transformers.pretrained import Pretrained
from spark_estimator.extensions.transformers.tokens import NO_TARGET, PADDING
from spark_estimator.extensions.transformers.training import TextParts
from tests.extensions.transformers.test_tokens import CAUSAL, CLASSES, WORDS
from tests.scenarios.huggingface import tiny

TEXTS = [[2, 8, 9, 10, 6], [2, 11, 12, 6]]


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=2, n_head=2)).eval()


@pytest.mark.parametrize("net", [tiny.causal, gpt2], ids=["llama", "gpt2"])
def test_texts_of_a_packed_row_do_not_see_one_another(net: Any) -> None:
    model = net().eval()
    joined = torch.tensor([[*TEXTS[0], *TEXTS[1], PADDING, PADDING, PADDING]])
    places = torch.tensor([[*range(5), *range(4), 0, 0, 0]])
    scores = TextModule(model, CAUSAL)(joined, places)
    assert scores.shape == (1, 32, 12)
    for text, start in zip(TEXTS, (0, 5), strict=True):
        alone = model(torch.tensor([text])).logits[0].T
        torch.testing.assert_close(scores[0, :, start : start + len(text)], alone, rtol=1e-5, atol=1e-6)


class Seeing(nn.Module):
    """Shows a model all texts of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny.causal()
        self.config = self.net.config

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool) -> Any:
        return self.net(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), position_ids=position_ids)


def test_models_whose_texts_would_see_one_another() -> None:
    from transformers import BloomConfig, BloomForCausalLM

    check_packing(TextModule(tiny.causal(), CAUSAL))
    check_packing(TextModule(gpt2(), CAUSAL))
    with pytest.raises(DataError, match=r"Seeing does not keep .* depend on the text before it\): set packing=False"):
        check_packing(TextModule(Seeing(), CAUSAL))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(DataError, match="BloomForCausalLM does not keep the texts of a packed row apart"):
        check_packing(TextModule(bloom, CAUSAL))


def test_padding_changes_nothing() -> None:
    net = tiny.classifier().eval()
    module = TextModule(net, CLASSES)
    rows = torch.full((2, 12), PADDING)
    for row, text in zip(rows, TEXTS, strict=True):
        row[: len(text)] = torch.tensor(text)
    scores = module(rows)
    for row, text in zip(scores, TEXTS, strict=True):
        torch.testing.assert_close(row, net(torch.tensor([text])).logits[0], rtol=1e-5, atol=1e-6)


def test_the_state_of_an_adapter_is_the_adapter(classifier_folder: str) -> None:
    source = Pretrained.from_parameter(classifier_folder)
    lora = {"r": 2, "target_modules": ["query", "value"]}
    module = TextModule(make_net(source, CLASSES, lora, tiny.tokenizer()), CLASSES)
    state = module.state_dict()
    assert state and all("lora_" in name or "modules_to_save" in name for name in state)
    other = TextModule(make_net(source, CLASSES, lora, tiny.tokenizer()), CLASSES)
    changed = {name: torch.randn_like(value) for name, value in state.items()}
    for each in (module, other):
        each.load_state_dict(changed)
    rows = torch.tensor([[2, 8, 9]])
    torch.testing.assert_close(module.eval()(rows), other.eval()(rows))
    with pytest.raises(RuntimeError, match="other numbers are trained"):
        module.load_state_dict({})


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        (replace(CLASSES, max_length=65), tiny.classifier, "max_length=65 is more than the 64 tokens that the model"),
        (replace(CLASSES, labels=("a", "b", "c")), tiny.classifier, "the model has 2 classes, and the column 'kind' 3"),
        (CLASSES, tiny.causal, "model is a LlamaForCausalLM; task='classification' needs a model like AutoModelFor"),
        (WORDS, tiny.classifier, "model is a BertForSequenceClassification; task='token_classification'"),
        (CAUSAL, lambda: tiny.causal(vocab_size=20), r"the tokenizer has \d+ tokens and the model 20"),
    ],
)
def test_models_that_do_not_fit(task: Any, model: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_net(Pretrained.from_parameter(model()), task, None, tiny.tokenizer())


def test_rows_that_have_nothing_to_learn_have_no_loss(causal_folder: str) -> None:
    """As the driver tries the model on the first rows."""
    chat = replace(CAUSAL, chat=True, packed=False)
    pretrained = Pretrained.from_parameter(causal_folder)
    parts = TextParts(pretrained, chat, None, tiny.tokenizer(), 1e-3, 0.0, recipe=PLAIN).make_parts()
    ids, labels = torch.tensor([[2, 8, 9, 3]]), torch.full((1, 4), NO_TARGET)
    loss, _, _ = compute_loss(parts, parts.model, [ids], [labels], None, 1)
    assert loss.value.item() == 0.0
    assert "no chat of column 'text' has a message of the assistant within max_length=12" in parts.nothing_to_learn


def test_arguments_that_peft_does_not_take(causal_folder: str) -> None:
    for lora, message in (({"rank": 2}, "unexpected keyword"), ({"target_modules": ["none"]}, "not found")):
        with pytest.raises(ValueError, match=rf"lora={re.escape(str(lora))} does not fit the model: .*{message}"):
            make_net(Pretrained.from_parameter(causal_folder), CAUSAL, lora, tiny.tokenizer())


def bert_as_causal(**options: Any) -> Any:
    from transformers import BertConfig, BertLMHeadModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertLMHeadModel(BertConfig(vocab_size=32, max_position_embeddings=32, **sizes, **options)).eval()


def test_models_that_see_later_tokens_are_not_causal() -> None:
    for net in (tiny.causal(), gpt2(), bert_as_causal(is_decoder=True)):
        check_causal(TextModule(net, CAUSAL))
    with pytest.raises(DataError, match=r"BertLMHeadModel sees the tokens that it should predict.*is_decoder=True"):
        check_causal(TextModule(bert_as_causal(), CAUSAL))


def test_objects_in_half_precision_train_in_float32() -> None:
    net = make_net(Pretrained(net=tiny.causal().to(torch.bfloat16)), CAUSAL, None, tiny.tokenizer())
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}


def test_a_head_for_other_classes_is_replaced(tmp_path: Path) -> None:
    three = tiny.classifier()
    three.config.num_labels = 3
    type(three)(three.config).save_pretrained(tmp_path)
    net, new = Pretrained(str(tmp_path)).read("AutoModelForSequenceClassification", num_labels=2, dtype=torch.float32)
    assert net.config.num_labels == 2 and new and all("classifier" in name or "score" in name for name in new)
    with pytest.raises(DataError, match=r"has the shape \(\d+, \d+\), and the config asks for"):
        Pretrained(str(tmp_path)).read("AutoModelForSequenceClassification", num_labels=3, vocab_size=99)


def test_classes_keep_the_order_of_the_pretrained_model() -> None:
    net = tiny.classifier()
    net.config.id2label, net.config.label2id = {0: "good", 1: "bad"}, {"good": 0, "bad": 1}
    assert Pretrained(net=net).order_labels(("bad", "good")) == ("good", "bad")
    assert Pretrained(net=net).order_labels(("bad", "worse")) == ("bad", "worse")
    net.config.id2label, net.config.label2id = {0: "2", 1: "1"}, {"2": 0, "1": 1}
    assert Pretrained(net=net).order_labels((1, 2)) == (2, 1)
