"""Models for which padding counts, though the mask leaves it out, get texts of one length at a time."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
import transformers

from spark_estimator import TransformersModel
from spark_estimator.extensions.transformers.padding import padding_changes_scores
from spark_estimator.extensions.transformers.predictor import TextPredictor
from tests.scenarios.huggingface import tiny

TEXTS = [row["text"] for row in tiny.sentences(8, seed=4)] + ["dog"]


def made(kind: str, config: Any) -> Any:
    torch.manual_seed(1)
    config.pad_token_id = 0
    net = getattr(transformers, kind)(config).eval()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return net


def fnet() -> Any:
    config = transformers.FNetConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=1, intermediate_size=32, max_position_embeddings=64
    )
    return made("FNetForSequenceClassification", config)


def bart() -> Any:
    config = transformers.BartConfig(
        vocab_size=32,
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        forced_eos_token_id=None,
    )
    return made("BartForCausalLM", config)


@pytest.mark.parametrize(
    ("net", "task", "counts"),
    [
        (fnet, "classification", True),
        (bart, "causal", True),
        (tiny.classifier, "classification", False),
        (tiny.causal, "causal", False),
    ],
)
def test_it_is_tried(net: Any, task: str, counts: bool) -> None:
    model = net().eval()
    model.config.pad_token_id = 0
    assert padding_changes_scores(model, task, 16) is counts
    assert padding_changes_scores(model.to(torch.bfloat16), task, 16) is counts, "it is tried once"


def test_what_cannot_be_tried_counts() -> None:
    assert padding_changes_scores(tiny.classifier(), "causal", 16)


def test_scores_are_those_of_a_text_alone() -> None:
    net = fnet()
    words = tiny.tokenizer()
    predictor = TextPredictor.from_model(net, words, 4, task="classification", max_length=64)
    expected = [net(torch.tensor([words(text)["input_ids"]])).logits[0].detach().numpy() for text in TEXTS]
    assert numpy.allclose(predictor.predict_texts(TEXTS), expected, rtol=1e-4, atol=1e-5)


def test_continuations_are_those_of_a_prompt_alone() -> None:
    net = bart()
    words = tiny.tokenizer()
    model = TransformersModel(model=net, tokenizer=words, task="causal", feature_columns=["text"], max_new_tokens=5)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([words(text)["input_ids"][:-1]])
        tokens = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5)
        expected.append(words.decode(tokens[0], skip_special_tokens=True)[len(text) :])
    assert model.predict(TEXTS) == expected
