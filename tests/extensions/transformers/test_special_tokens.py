"""Padding and ends of texts: one choice for the model's config, training, predictions and the saved folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator import DataError, TransformersModel
from spark_estimator.extensions.transformers.module import TextModule, make_net
from spark_estimator.extensions.transformers.pretrained import Pretrained
from spark_estimator.extensions.transformers.special_tokens import (
    count_positions,
    count_suffix_tokens,
    get_max_tokens,
    settle_end,
    settle_padding,
)
from tests.extensions.transformers.test_files import model
from tests.extensions.transformers.test_tokens import CAUSAL, CLASSES
from tests.scenarios.huggingface import tiny

TEXTS = [row["text"] for row in tiny.sentences(12)]


def llama(pad: int | None, **options: Any) -> Any:
    """Classifies by the scores of the last token that is not its config's padding token."""
    from transformers import LlamaForSequenceClassification

    torch.manual_seed(0)
    config = tiny.causal(pad_token_id=pad, **options).config
    config.num_labels = 8
    net = LlamaForSequenceClassification(config).eval()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return net


def tokenizer(**tokens: Any) -> Any:
    words = tiny.tokenizer()
    for name, token in tokens.items():
        setattr(words, name, token)
    return words


@pytest.mark.parametrize(
    ("config", "words", "chosen"),
    [
        (4, {}, 0),
        (None, {}, 0),
        (4, {"pad_token": None}, 4),
        (None, {"pad_token": None}, 6),
        (None, {"pad_token": None, "eos_token": None}, 6),  # of the config
    ],
)
def test_one_token_is_chosen(config: int | None, words: dict[str, Any], chosen: int) -> None:
    net = llama(config)
    assert settle_padding(net, tokenizer(**words)) == chosen == net.config.pad_token_id


@pytest.mark.parametrize("pad", [0, 4, 6, None])
def test_a_classifier_predicts_from_the_last_token_of_a_text(pad: int | None, tmp_path: Path) -> None:
    net, words, labels = llama(pad), tiny.tokenizer(), list("abcdefgh")
    trained = model(net, labels=labels)
    with torch.no_grad():
        plain = [int(net(torch.tensor([words(text)["input_ids"]])).logits.argmax()) for text in TEXTS]
    assert trained.predict(TEXTS) == [labels[number] for number in plain] and len(set(plain)) > 1
    trained.save(str(tmp_path / "saved"))
    loaded = TransformersModel.load(str(tmp_path / "saved"))
    assert loaded.getModel().config.pad_token_id == words.pad_token_id
    assert loaded.predict(TEXTS) == trained.predict(TEXTS)


def test_the_training_fills_up_with_the_same_token() -> None:
    task = replace(CLASSES, labels=tuple("abcdefgh"))
    module = TextModule(make_net(Pretrained.from_parameter(llama(4)), task, None, tiny.tokenizer()), task)
    assert module.net.config.pad_token_id == 0
    ids = torch.tensor([[2, 8, 9, 3]])
    wider = torch.nn.functional.pad(ids, (0, 3), value=-1)
    torch.testing.assert_close(module(wider), module(ids))


def test_positions_that_are_counted_from_padding_stay() -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    net = RobertaForSequenceClassification(
        RobertaConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    )
    assert settle_padding(net, tiny.tokenizer()) == 1 == net.config.pad_token_id


def test_neither_has_a_token_for_padding() -> None:
    net = llama(None, eos_token_id=None)
    words = tokenizer(pad_token=None, eos_token=None)
    with pytest.raises(DataError, match=r"neither the tokenizer nor .*LlamaForSequ.*: set tokenizer\.pad_token"):
        TransformersModel(model=net, tokenizer=words, task="classification", labels=["a", "b"])


@pytest.mark.parametrize(("ends", "expected"), [(None, 6), (6, 6), (7, [7, 6]), ([7, 6], [7, 6]), ([8, 7], [8, 7, 6])])
def test_the_end_of_a_learned_text_ends_a_generation(ends: Any, expected: Any) -> None:
    base = tiny.causal()
    base.generation_config.eos_token_id = ends
    net = make_net(Pretrained.from_parameter(base), CAUSAL, None, tiny.tokenizer())
    assert net.generation_config.eos_token_id == expected  # type: ignore[union-attr]
    settle_end(net, tokenizer(eos_token=None))
    assert net.generation_config.eos_token_id == expected  # type: ignore[union-attr]


def test_a_config_without_a_limit_of_positions() -> None:
    import transformers

    assert count_positions(transformers.XLNetConfig()) is None


def test_tokens_that_the_tokenizer_adds_after_a_text() -> None:
    words = tiny.tokenizer()
    assert count_suffix_tokens(words) == 1
    words.backend_tokenizer.post_processor = None
    assert count_suffix_tokens(words) == 0


@pytest.mark.parametrize("kind, most", [("roberta", 30), ("bert", 32)])
def test_how_many_tokens_a_model_takes(kind: str, most: int) -> None:
    """RoBERTa counts positions from its padding token, 1, on."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.AutoConfig.for_model(kind, vocab_size=32, max_position_embeddings=32, **sizes)
    net = transformers.AutoModel.from_config(config)
    assert get_max_tokens(net) == most
    net(input_ids=torch.full((1, most), 5))
    with pytest.raises((IndexError, RuntimeError)):
        net(input_ids=torch.full((1, most + 1), 5))
