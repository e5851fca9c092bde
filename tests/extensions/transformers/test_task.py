"""The task of a training on texts, from parameters and the types of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from spark_estimator import DataError
from spark_estimator.extensions.transformers.task import TextTask, choose_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHAT = "array<struct<role:string,content:string>>"
SCHEMA = (
    f"text string, words array<string>, chat {CHAT}, kinds array<string>, kind string, number long, flag boolean, "
    "share double, bytes binary, other_chat array<struct<role:string,text:string>>"
)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    """No row; only its types are read where classes are named."""
    return spark.createDataFrame([], SCHEMA)


def value_of(**values: Any) -> Callable[[str], Any]:
    defaults = {
        "text_col": "text",
        "label_col": None,
        "validation": None,
        "task": None,
        "labels": None,
        "max_length": 16,
        "packing": True,
        "loss_on": "assistant",
    }
    return {**defaults, **values}.__getitem__


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ("causal", False, (), "string", True)),
        ({"text_col": "chat", "packing": False}, ("causal", True, (), "string", False)),
        ({"label_col": "kind", "labels": ["b", "a"]}, ("classification", False, ("b", "a"), "string", False)),
        ({"label_col": "number", "labels": [3, 1]}, ("classification", False, (3, 1), "bigint", False)),
        ({"label_col": "flag", "labels": [False, True]}, ("classification", False, (False, True), "boolean", False)),
        (
            {"text_col": "words", "label_col": "kinds", "labels": ["O", "X"]},
            ("token_classification", False, ("O", "X"), "string", False),
        ),
    ],
)
def test_columns_decide_the_task(frame: DataFrame, values: dict[str, Any], expected: tuple[Any, ...]) -> None:
    task = choose_task(value_of(**values), frame)
    assert (task.task, task.chat, task.labels, task.label_type, task.packed) == expected
    assert (task.text, task.label) == (values.get("text_col", "text"), values.get("label_col"))
    assert choose_task(value_of(**values, task=expected[0]), frame) == task, "as it is named"


def test_inputs_of_packed_rows_have_positions(frame: DataFrame) -> None:
    assert choose_task(value_of(), frame).inputs == ["input_ids", "position_ids"]
    assert choose_task(value_of(packing=False), frame).inputs == ["input_ids"]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"text_col": "texts"}, DataError, r"text_col='texts': the DataFrame has no column .*Did you mean 'text'"),
        ({"label_col": "kindd"}, DataError, "label_col='kindd': .*Did you mean 'kind"),
        ({"validation": "held"}, DataError, "validation='held': the DataFrame has no column"),
        (
            {"validation": "share"},
            DataError,
            "validation='share': the column has type double. It must be boolean, or an",
        ),
        ({"validation": "kind"}, DataError, "validation='kind': the column has type string"),
        ({"label_col": "kind"}, DataError, "the DataFrame has no rows"),
        ({"text_col": "number"}, DataError, r"'number' has type bigint; task='causal' needs a text, or an array of st"),
        ({"text_col": "words"}, DataError, r"'words' has type array<string>; task='causal' needs a text"),
        ({"text_col": "other_chat"}, DataError, "with the texts role and content"),
        ({"text_col": "chat", "label_col": "kind"}, DataError, r"task='classification' needs a text\.\n"),
        ({"label_col": "kinds"}, DataError, r"'text' has type string; task='token_classification' needs an array of w"),
        ({"text_col": "words", "label_col": "kind"}, DataError, r"task='classification' needs a text"),
        ({"label_col": "share"}, DataError, "'share' has type double; classes are texts, integers or booleans. Cast"),
        ({"label_col": "bytes"}, DataError, "'bytes' has type binary; classes are"),
        ({"label_col": "kinds", "task": "classification"}, DataError, "which is not for task='classification'"),
        ({"task": "causal", "label_col": "kind"}, ValueError, "leave label_col='kind' out"),
        ({"task": "classification"}, ValueError, "task='classification' needs label_col"),
        (
            {"label_col": "kind", "labels": ["a", "b", "a"]},
            ValueError,
            r"labels contains a class twice: \['a', 'b', 'a",
        ),
    ],
)
def test_what_does_not_fit(frame: DataFrame, values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        choose_task(value_of(**values), frame)


@pytest.mark.slow
def test_classes_that_are_not_named_are_those_of_the_rows(spark: SparkSession) -> None:
    rows = [("a", "x", ["b", None]), ("b", None, None), ("c", "w", ["a", "b"]), ("d", "x", [])]
    frame = spark.createDataFrame(rows, "text string, `the kind` string, `a.b` array<string>").coalesce(1)
    assert choose_task(value_of(label_col="the kind"), frame).labels == ("w", "x")
    with pytest.raises(DataError, match=r"'the kind' has the classes \['x'\]; a classifier needs two or more"):
        choose_task(value_of(label_col="the kind"), frame.filter("text = 'a'"))


def test_a_task_is_a_plain_value() -> None:
    arguments = ("causal", "text", None, False, (), "string", 12, True, "all")
    assert TextTask(*arguments) == TextTask(*arguments) and hash(TextTask(*arguments))
