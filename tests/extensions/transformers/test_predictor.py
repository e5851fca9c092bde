"""Texts that are classified and continued, without Spark: any batch gives the same, and nulls stay null."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from spark_estimator import DataError, TransformersModel
from spark_estimator.estimators.inference.prediction_columns import PredictionColumn, Role
from spark_estimator.extensions.transformers.predictor import TextPredictor, check_generation
from tests.estimators.torch.stand_in_cuda import spark_task, stand_in
from tests.scenarios.huggingface import tiny

SCORES = PredictionColumn("scores", 0, 2, Role.LABEL, "array<float>")
TEXT = PredictionColumn("answer", 0, 1, Role.TEXT, "string")
WORDS = PredictionColumn("kinds", 0, 1, Role.TEXT, "array<string>", classes=("O", "animal"))
TEXTS = [row["text"] for row in tiny.sentences(6)]


@pytest.fixture(scope="module")
def classifier() -> TextPredictor:
    options: Any = {"task": "classification", "max_length": 24, "columns": (SCORES,), "text": "text"}
    return TextPredictor.from_model(tiny.classifier(), tiny.tokenizer(), 4, **options)


@pytest.fixture(scope="module")
def words() -> TextPredictor:
    from transformers import BertForTokenClassification

    torch.manual_seed(1)
    net = BertForTokenClassification(tiny.classifier().config)
    options: Any = {"task": "token_classification", "max_length": 8, "columns": (WORDS,), "text": "text"}
    return TextPredictor.from_model(net, tiny.tokenizer(), 4, **options)


@pytest.fixture(scope="module")
def causal() -> TextPredictor:
    options: Any = {"task": "causal", "max_length": 24, "columns": (TEXT,), "text": "text"}
    return TextPredictor.from_model(tiny.causal(), tiny.tokenizer(), 4, generation={"max_new_tokens": 3}, **options)


def batch_of(texts: pyarrow.Array) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_arrays([texts], names=["text"])


def test_scores_do_not_depend_on_the_other_texts(classifier: TextPredictor) -> None:
    together = numpy.stack(classifier.predict_texts(TEXTS))
    assert together.shape == (6, 2) and together.dtype == numpy.float32
    alone = numpy.concatenate([classifier.predict_texts([text]) for text in TEXTS[:3]])
    backwards = numpy.stack(classifier.predict_texts(TEXTS[::-1]))[::-1]
    larger = numpy.stack(replace(classifier, batch_size=100).predict_texts(TEXTS))
    for other in (alone, backwards, larger):
        assert numpy.array_equal(together[: len(other)], other)
    net, tokenizer = tiny.classifier().eval(), tiny.tokenizer()
    with torch.no_grad():
        expected = net(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0]
    assert numpy.allclose(together[0], expected, atol=1e-5)


def test_nulls_empty_texts_and_no_texts(classifier: TextPredictor) -> None:
    result = classifier.predict_batch(batch_of(pyarrow.array([None, "", TEXTS[0], None])))
    assert result.is_valid().to_pylist() == [False, True, True, False]
    assert len(classifier.predict_batch(batch_of(pyarrow.array([], pyarrow.string())))) == 0
    assert classifier.predict_batch(batch_of(pyarrow.array([None, None], pyarrow.string()))).null_count == 2


def test_it_travels_by_pickle(classifier: TextPredictor) -> None:
    copy = pickle.loads(pickle.dumps(classifier))
    assert numpy.array_equal(copy.predict_texts(TEXTS[:2]), classifier.predict_texts(TEXTS[:2]))
    assert "payload" not in repr(classifier)
    with pytest.raises(NotImplementedError):
        classifier.call(None, [])


@pytest.mark.parametrize("null", [None, float("nan"), pandas.NA])
def test_a_frame_of_pandas(classifier: TextPredictor, null: Any) -> None:
    frame = pandas.DataFrame({"text": [TEXTS[0], null], "other": [1, 2]}, index=[5, 6])
    result = classifier.predict_frame(frame)
    assert list(result.columns) == ["scores"] and list(result.index) == [5, 6]
    assert len(result["scores"].loc[5]) == 2 and result["scores"].isna().tolist() == [False, True]
    assert classifier.predict_frame({"text": TEXTS[:3]}).shape == (3, 1)
    with pytest.raises(DataError, match="there is no column 'text'"):
        classifier.predict_frame(frame[["other"]])


def test_strings_of_pandas_own_type(classifier: TextPredictor) -> None:
    frame = pandas.DataFrame({"text": pandas.array([TEXTS[0], None], dtype="string")})
    assert classifier.predict_frame(frame)["scores"].isna().tolist() == [False, True]


def test_texts_that_are_too_long_are_cut(classifier: TextPredictor) -> None:
    long = " ".join(["the cat and"] * 50)
    kept = " ".join(long.split()[:22])  # the tokenizer adds two
    assert numpy.array_equal(*classifier.predict_texts([long, kept]))


def test_each_word_has_a_class_and_one_that_is_cut_off_none(words: TextPredictor) -> None:
    rows = [["the", "cat", "is", "kind"], [], ["the"] * 9, None]
    result = words.predict_batch(batch_of(pyarrow.array(rows, pyarrow.list_(pyarrow.string())))).to_pylist()
    assert [None if row is None else len(row["p0"]) for row in result] == [4, 0, 9, None]
    assert set(result[0]["p0"]) <= {"O", "animal"}
    assert result[2]["p0"][6:] == [None] * 3 and None not in result[2]["p0"][:6]
    frame = words.predict_frame(pandas.DataFrame({"text": [numpy.array(["the", "cat"]), ["the"]]}))
    assert [len(row) for row in frame["kinds"]] == [2, 1]


def test_texts_are_continued_one_like_the_other(causal: TextPredictor) -> None:
    outputs = causal.predict_texts(TEXTS)
    assert all(isinstance(text, str) for text in outputs)
    assert [causal.predict_texts([text])[0] for text in TEXTS[:2]] == outputs[:2]
    longer = replace(causal, generation={"max_new_tokens": 9, "min_new_tokens": 9}).predict_texts(TEXTS[:1])
    assert len(longer[0].split()) >= len(outputs[0].split())


def test_chats_come_as_json_or_as_they_are(causal: TextPredictor) -> None:
    chats = [row["messages"][:1] for row in tiny.chats(3)]
    expected = causal.predict_texts(chats)
    as_json = replace(causal, as_json=True).predict_batch(batch_of(pyarrow.array([*map(json.dumps, chats), None])))
    assert [row and row["p0"] for row in as_json.to_pylist()] == [*expected, None]
    assert causal.predict_frame({"text": chats})["answer"].tolist() == expected


@pytest.mark.parametrize("name", ["classifier", "words", "causal"])
def test_on_the_gpu_of_a_task(name: str, request: pytest.FixtureRequest) -> None:
    known: TextPredictor = request.getfixturevalue(name)
    texts = [text.split() for text in TEXTS] if name == "words" else TEXTS
    expected = known.predict_texts(texts)
    with stand_in(2) as gpus, spark_task("1"):
        outputs = replace(known, device="auto").predict_texts(texts)
    assert any(copy == ("cpu", "cuda:1", True, True) for copy in gpus.copies), "texts go there from pinned memory"
    assert all(numpy.array_equal(output, other) for output, other in zip(outputs, expected, strict=True))


def test_nulls_inside_of_a_text_are_nulls(words: TextPredictor, causal: TextPredictor) -> None:
    rows = [["the", None], ["the", "cat"], None]
    result = words.predict_batch(batch_of(pyarrow.array(rows, pyarrow.list_(pyarrow.string()))))
    assert result.is_valid().to_pylist() == [False, True, False]
    chats = [json.dumps([{"role": "user"}]), json.dumps([{"role": "user", "content": "the cat"}]), None]
    answers = replace(causal, as_json=True).predict_batch(batch_of(pyarrow.array(chats)))
    assert answers.is_valid().to_pylist() == [False, True, False]


@pytest.mark.parametrize("null", [None, float("nan"), pandas.NA])
def test_predict_gives_none_for_null(null: Any) -> None:
    options: Any = {"tokenizer": tiny.tokenizer(), "feature_columns": ["text"]}
    classes = TransformersModel(model=tiny.classifier(), task="classification", labels=["a", "b"], **options)
    assert classes.predict([null, TEXTS[0]]) == [None, *classes.predict(TEXTS[:1])]
    assert classes.predict([null]) == [None]
    causal = TransformersModel(model=tiny.causal(), task="causal", max_new_tokens=2, **options)
    assert causal.predict([TEXTS[0], null]) == [*causal.predict(TEXTS[:1]), None]
    chat = [{"role": "user", "content": "the cat"}]
    assert causal.predict([null, chat])[0] is None and isinstance(causal.predict([null, chat])[1], str)


def varied(seed: int = 0) -> Any:
    """A model whose texts depend on every token before."""
    net = tiny.causal(seed=seed).eval()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)
    return net


def plain(net: Any, text: str, **options: Any) -> str:
    """What transformers generates after a prompt's text, which is as a training has it, without what ends a text."""
    words = tiny.tokenizer()
    ids = torch.tensor([words(text)["input_ids"][:-1]])
    tokens = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return after(words, ids, tokens)


def after(words: Any, prompt: torch.Tensor, tokens: torch.Tensor) -> str:
    """The text that follows a prompt's, as ``pipeline("text-generation", return_full_text=False)`` has it."""
    whole, before = (words.decode(ids[0], skip_special_tokens=True) for ids in (tokens, prompt))
    return str(whole[len(before) :])


@pytest.mark.parametrize(
    "generation",
    [
        {},
        {"repetition_penalty": 1.8},
        {"no_repeat_ngram_size": 1},
        {"min_length": 14},
        {"num_beams": 2},
        {"max_length": 20},
        {"eos_token_id": 8},
    ],
    ids=str,
)
def test_generation_is_that_of_transformers(generation: dict[str, Any]) -> None:
    net, words = varied(), tiny.tokenizer()
    made = TransformersModel(
        model=net, tokenizer=words, task="causal", feature_columns=["text"], max_new_tokens=7, generation=generation
    )
    expected = {"max_new_tokens": 7, **generation} if "max_length" not in generation else generation
    assert made.predict(TEXTS) == [plain(net, text, **expected) for text in TEXTS]


@pytest.mark.parametrize("name", ["repetition_penalty", "eos_token_id"])
def test_generation_follows_the_models_own_config(name: str) -> None:
    net = varied()
    made = TransformersModel(model=net, tokenizer=tiny.tokenizer(), task="causal", feature_columns=["text"])
    made.setMaxNewTokens(7)
    before = made.predict(TEXTS)
    seen = {token for text in before for token in tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]}
    setattr(net.generation_config, name, 1.8 if name == "repetition_penalty" else [6, *sorted(seen)[:3]])
    changed = made.predict(TEXTS)
    assert changed == [plain(net, text, max_new_tokens=7) for text in TEXTS] and changed != before


def test_a_config_that_asks_for_more_than_one_text_or_draws_drafts() -> None:
    net = varied()
    made = TransformersModel(model=net, tokenizer=tiny.tokenizer(), task="causal", feature_columns=["text"])
    before = made.setMaxNewTokens(4).predict(TEXTS)
    net.generation_config.prompt_lookup_num_tokens = 2
    assert made.predict(TEXTS) == before
    net.generation_config.prompt_lookup_num_tokens = None
    net.generation_config.num_beams = 2
    before = made.predict(TEXTS)
    net.generation_config.num_return_sequences = 2
    assert made.predict(TEXTS) == before


@pytest.mark.parametrize("first", [4, None])
def test_a_prompt_without_a_token(first: int | None) -> None:
    """It begins with the token that begins texts; without one it has no continuation."""
    net, words = varied(), tiny.tokenizer()
    words._tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    net.generation_config.bos_token_id = first
    made = TransformersModel(model=net, tokenizer=words, task="causal", feature_columns=["text"], max_new_tokens=4)
    if first is None:
        assert made.predict(["", TEXTS[0]])[0] is None
        return
    ids = torch.tensor([[first]])
    tokens = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    assert made.predict([""]) == [after(words, ids, tokens)]


def test_a_prompt_is_as_long_as_max_length_without_what_ends_a_text() -> None:
    long = " ".join(["the cat and"] * 20)
    made = TransformersModel(model=varied(), tokenizer=tiny.tokenizer(), task="causal", feature_columns=["text"])
    made.setMaxLength(6).setMaxNewTokens(5)
    net, words = made.getModel(), tiny.tokenizer()
    ids = torch.tensor([[2, *words(long, add_special_tokens=False)["input_ids"][-5:]]])
    tokens = net.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5)
    assert made.predict([long]) == [after(words, ids, tokens)]


def test_scores_that_are_nan_have_no_class(words: TextPredictor) -> None:
    net = tiny.classifier()
    with torch.no_grad():
        next(parameter for name, parameter in net.named_parameters() if name.startswith(("classifier", "score"))).fill_(
            float("nan")
        )
    model = TransformersModel(
        model=net, tokenizer=tiny.tokenizer(), task="classification", labels=["bad", "good"], feature_columns=["text"]
    )
    assert model.predict(["the cat is kind", None]) == [None, None]


def test_a_chat_without_messages_has_no_answer() -> None:
    model = TransformersModel(
        model=tiny.causal(), tokenizer=tiny.tokenizer(), task="causal", max_new_tokens=2, feature_columns=["text"]
    )
    chat = [{"role": "user", "content": "the cat"}]
    assert model.predict([[], chat]) == [None, *model.predict([chat])]


def test_arguments_of_generate() -> None:
    check_generation({"do_sample": True, "stop_strings": ["cat"], "num_return_sequences": 1})
    with pytest.raises(ValueError, match=r"generate\(\) takes no argument 'temprature'. Did you mean 'temperature'"):
        check_generation({"temprature": 1.0})
    with pytest.raises(ValueError, match="num_return_sequences must be 1"):
        check_generation({"num_return_sequences": 2})


def test_texts_that_end_a_generation_need_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`generate` reads it; the words of the test's tokenizer are no pieces of text, which it cannot search."""
    net = tiny.causal()
    seen: dict[str, Any] = {}

    def generate(self: Any, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        seen.update(options)
        return input_ids

    monkeypatch.setattr(type(net), "generate", generate)
    predictor = TextPredictor.from_model(
        net, tiny.tokenizer(), 2, task="causal", max_length=8, generation={"stop_strings": ["cat"]}, as_json=False
    )
    assert predictor.predict_texts(["the"]) == [""]
    assert seen["tokenizer"].eos_token_id == tiny.tokenizer().eos_token_id
