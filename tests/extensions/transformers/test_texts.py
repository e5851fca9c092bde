"""What a model of texts is given, and the rows that it makes of it: one text is one row."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import torch

from spark_estimator import DataError, TransformersModel
from spark_estimator.estimators.tracking.flavour import PyfuncModel
from spark_estimator.extensions.transformers.texts import to_rows
from tests.scenarios.huggingface import tiny

TEXTS = [row["text"] for row in tiny.sentences(3)]
WORDS = [text.split() for text in TEXTS]
CHAT = tiny.chats(1)[0]["messages"][:1]


def model(task: str) -> TransformersModel:
    nets = {"causal": tiny.causal, "classification": tiny.classifier, "token_classification": _of_words}
    return TransformersModel(
        model=nets[task]().eval(),
        tokenizer=tiny.tokenizer(),
        task=task,
        labels=None if task == "causal" else ["bad", "good"],
        label_type="string",
        feature_columns=["text"],
        label_columns=["kind"],
        max_length=16,
        max_new_tokens=2,
    )


def _of_words() -> Any:
    from transformers import BertForTokenClassification

    torch.manual_seed(1)
    return BertForTokenClassification(tiny.classifier().config)


TASKS = ("classification", "causal", "token_classification")


@pytest.fixture(scope="module", params=TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(task: str) -> TransformersModel:
    return model(task)


def test_one_text_is_one_row() -> None:
    for task in ("classification", "causal"):
        made = model(task)
        right = made.predict(TEXTS[:1])
        for text in (TEXTS[0], numpy.str_(TEXTS[0]), numpy.array(TEXTS[0]), {"text": TEXTS[0]}):
            assert made.predict(text) == right and len(right) == 1
        assert PyfuncModel(made).predict({"text": TEXTS[0]}).shape == (1, 1)


def test_one_chat_is_one_row() -> None:
    made = model("causal")
    right = made.predict([CHAT])
    assert len(right) == 1 and isinstance(right[0], str)
    assert made.predict(CHAT) == right == made.predict(tuple(CHAT)) == made.predict({"text": [CHAT]})
    assert made.predict([CHAT, None, [], CHAT]) == [*right, None, None, *right]


def test_rows_and_no_rows(trained: TransformersModel, task: str) -> None:
    rows: list[Any] = WORDS if task == "token_classification" else TEXTS
    right = trained.predict(rows)
    assert len(right) == 3
    series = pandas.Series(rows, index=[4, 5, 6])
    several = [series, pyarrow.array(rows), tuple(rows), pandas.DataFrame({"text": series}), {"text": rows}, iter(rows)]
    several += [pyarrow.table({"text": rows}), {"text": pyarrow.array(rows)}]
    several += [numpy.array(rows)] if task != "token_classification" else [[numpy.array(row) for row in rows]]
    for features in several:
        assert trained.predict(features) == right
    for null in (None, float("nan"), pandas.NA, pandas.NaT, numpy.nan):
        assert trained.predict([null, rows[0]]) == [None, right[0]]
    for nothing in ([], (), numpy.array([]), pandas.Series([]), pandas.DataFrame({"text": []}), {"text": []}):
        assert trained.predict(nothing) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 3, 3.5, True, b"a text", bytearray(b"a text"), numpy.array(3.0), print, [3], [b"a text"], ["a", 3]),
        *([{"a": "b"}], [[{"role": "user"}]], [["a", 3]], [[["a"]]], [{"text": "a text"}], {"text": None}, {"text": 3}),
    ],
    ids=repr,
)
def test_what_is_no_text(trained: TransformersModel, task: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"predict\\(\\) was given .* task='{task}' predicts from "):
        trained.predict(wrong)
    with pytest.raises(TypeError, match=r"predict\(\) (was given|takes a pandas\.DataFrame)"):
        PyfuncModel(trained).predict(wrong)


def test_texts_words_and_chats_are_for_their_tasks() -> None:
    for task, wrong in (
        ("token_classification", TEXTS[0]),
        ("token_classification", TEXTS),
        ("classification", WORDS),
        ("classification", CHAT),
        ("classification", [CHAT]),
        ("token_classification", [CHAT]),
        ("causal", WORDS),
        ("causal", CHAT[0]["content"].encode()),
    ):
        with pytest.raises(TypeError, match=f"task='{task}' predicts from "):
            to_rows(wrong, "text", task)
    with pytest.raises(DataError, match="texts and chats together"):
        to_rows([TEXTS[0], CHAT], "text", "causal")
    for table in ({}, pandas.DataFrame(), CHAT[0], {"Text": TEXTS}):
        with pytest.raises(DataError, match="there is no column 'text' among"):
            to_rows(table, "text", "causal")
