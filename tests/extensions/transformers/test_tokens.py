"""Rows of token numbers, without Spark: what the workers' function makes of Arrow batches."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pandas
import pyarrow
import pytest

from spark_estimator import DataError
from spark_estimator.extensions.transformers.task import TextTask
from spark_estimator.extensions.transformers.tokens import NO_TARGET, PADDING, Encoder, Tokenising, has_null
from tests.scenarios.huggingface import tiny

CAUSAL = TextTask("causal", "text", None, False, (), "string", 12, True, "assistant")
CLASSES = replace(CAUSAL, task="classification", label="kind", labels=("bad", "good"), packed=False)
WORDS = replace(CLASSES, task="token_classification", labels=("O", "animal"), max_length=8)


def made(task: TextTask, columns: dict[str, list[Any]], **options: Any) -> list[dict[str, Any]]:
    function = pickle.loads(pickle.dumps(Tokenising(task, pickle.dumps(tiny.tokenizer()), **options)))
    batch = pyarrow.RecordBatch.from_pydict(columns)
    return [row for result in function(iter([batch])) for row in result.to_pylist()]


def test_classes_become_numbers_and_texts_are_filled_or_cut() -> None:
    texts = ["the cat is kind", "the cat and the dog and the fox and the hen is loud", ""]
    rows = made(CLASSES, {"text": texts, "kind": ["good", "bad", "bad"]})
    words = tiny.tokenizer()
    assert [row["labels"] for row in rows] == [1, 0, 0]
    assert rows[0]["input_ids"] == [*words(texts[0])["input_ids"], *[PADDING] * 6]
    assert PADDING not in rows[1]["input_ids"] and len(rows[1]["input_ids"]) == 12
    assert rows[2]["input_ids"][:2] == [2, 3]


def test_a_text_without_a_token_has_one_that_is_seen() -> None:
    words = tiny.tokenizer()
    words.backend_tokenizer.post_processor = None
    (row,) = Encoder(CLASSES, words).encode([""], ["good"])
    assert row == ([words.pad_token_id], 1)


def test_words_have_their_class_at_their_first_token() -> None:
    columns = {"text": [["the", "cat", "is", "kind"]], "kind": [["O", "animal", "O", None]]}
    (row,) = made(WORDS, columns)
    assert row["labels"] == [NO_TARGET, 0, 1, 0, NO_TARGET, NO_TARGET, NO_TARGET, NO_TARGET]
    with pytest.raises(DataError, match="a row has 4 words in 'text' and 1 classes in 'kind'"):
        made(WORDS, {**columns, "kind": [["O"]]})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "kind": ["bad", "bad"]}, "column 'text' holds a null. nulls='drop' leaves such rows"),
        ({"text": ["a"], "kind": [None]}, "column 'kind' holds a null"),
        (
            {"text": [["a", None]], "kind": ["bad"]},
            "column 'text' holds a null inside of an array. nulls='drop' leaves",
        ),
        ({"text": ["a"], "kind": ["ugly"]}, r"holds 'ugly', which is not among labels=\['bad', 'good'\]"),
    ],
)
def test_values_that_cannot_be_used(columns: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        made(CLASSES, columns)


@pytest.mark.parametrize("marks", [[0, 2], [True, None]])
def test_marks_that_are_neither_for_training_nor_validation(marks: list[Any]) -> None:
    with pytest.raises(DataError, match="the column of validation marks holds null, or a number that is neither 0"):
        made(CLASSES, {"text": ["a", "b"], "kind": ["bad", "bad"], "held": marks}, marker="held")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("a", False),
        (["a", ""], False),
        ([], False),
        ([{"role": "user", "content": "a"}], False),
        (None, True),
        (float("nan"), True),
        (pandas.NA, True),
        (["a", None], True),
        ([{"role": "user", "content": None}], True),
        ([{"role": "user"}], True),
        ([None], True),
    ],
)
def test_texts_that_are_null_or_have_a_null_inside(text: Any, expected: bool) -> None:
    assert has_null(text) is expected


def test_rows_with_a_null_inside_are_dropped_on_request() -> None:
    columns = {"text": [["the", None], ["cat"]], "kind": [["O", "O"], ["animal"]]}
    (row,) = made(WORDS, columns, apply_null_rules=True)
    assert row["labels"][:2] == [NO_TARGET, 1]


def test_nulls_are_dropped_on_request() -> None:
    columns = {"text": ["a", None, "b"], "kind": ["bad", "bad", None]}
    assert [row["labels"] for row in made(CLASSES, columns, apply_null_rules=True)] == [0]


def test_chats_without_messages() -> None:
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "good"}]
    columns: dict[str, list[Any]] = {"text": [[], chat]}
    task = replace(CAUSAL, chat=True, packed=False)
    assert len(made(task, columns, apply_null_rules=True)) == 1
    with pytest.raises(DataError, match=r"'text' holds a chat without messages. nulls='drop' leaves such rows out"):
        made(task, columns)


def test_packed_texts_keep_every_token_and_predict_none_of_another_text() -> None:
    texts = [row["text"] for row in tiny.sentences(30)]
    words, end = tiny.tokenizer(), tiny.tokenizer().eos_token_id
    rows = made(CAUSAL, {"text": texts})
    pieces = []
    for row in rows:
        used = [token for token in row["input_ids"] if token != PADDING]
        starts = [place for place in range(len(used)) if row["position_ids"][place] == 0]
        pieces += [used[a:b] for a, b in zip(starts, [*starts[1:], len(used)], strict=True)]
        for place, token in enumerate(used):
            last = place + 1 in (*starts, len(used))
            assert row["labels"][place] == (NO_TARGET if last else used[place + 1]), (place, token)
        assert row["labels"][len(used) :] == [NO_TARGET] * (12 - len(used))
    expected = []
    for text in texts:
        ids = [*words(text)["input_ids"], end]
        expected += [ids[start : start + 12] for start in range(0, len(ids), 12)]
    assert sorted(pieces) == sorted(expected)
    assert len(rows) < len(expected)


def test_rows_for_validation_are_packed_by_themselves() -> None:
    texts = ["the cat is kind", "the dog is loud"] * 4
    task = replace(CAUSAL, max_length=40)
    rows = made(task, {"text": texts, "held": [False, True] * 4}, marker="held")
    held = [(row["held"], tiny.tokenizer().decode([max(0, token) for token in row["input_ids"]])) for row in rows]
    assert [mark for mark, _ in held] == [False, True]
    assert "kind" not in held[1][1] and "loud" not in held[0][1]


def test_what_the_assistant_says_is_learned() -> None:
    task = replace(CAUSAL, chat=True)
    words = tiny.tokenizer()
    messages = [
        {"role": "user", "content": "the cat is kind"},
        {"role": "assistant", "content": "good"},
        {"role": "user", "content": "the dog is loud"},
        {"role": "assistant", "content": "bad"},
    ]
    ids, targets = Encoder(task, words).encode_chat(messages)
    assert words.decode([token for token in targets if token != NO_TARGET]).split() == ["good", "<end>", "bad", "<end>"]
    learned = [place for place, target in enumerate(targets) if target != NO_TARGET]
    assert [targets[place] for place in learned] == [ids[place + 1] for place in learned]
    every, targets = Encoder(replace(task, loss_on="all"), words).encode_chat(messages)
    assert every == ids and targets == [*ids[1:], NO_TARGET]
    words.chat_template = "{{ messages | length }}" + words.chat_template
    with pytest.raises(DataError, match="use loss_on='all'"):
        Encoder(task, words).encode_chat(messages)
