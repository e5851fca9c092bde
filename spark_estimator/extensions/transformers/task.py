"""Chooses the task of a training on texts from the parameters and the DataFrame's columns; reads only the classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.quoting import quote
from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import check_marker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

#: More are hardly classes.
_MOST_CLASSES = 10_000
_CLASS_TYPES = ("string", "boolean", "byte", "short", "integer", "long")


@dataclass(frozen=True)
class TextTask:
    """A task and its columns.

    Attributes:
        task: one of `params.TASKS`.
        text: the column of texts.
        label: the column of classes; None: there is none.
        chat: the texts are arrays of messages.
        labels: the classes, in the order of the model's outputs; empty: there are none.
        label_type: the Spark type of a class, as ``simpleString``.
        max_length: tokens of a row.
        packed: a row holds several texts.
        loss_on: of a chat, "assistant" or "all".
    """

    task: str
    text: str
    label: str | None
    chat: bool
    labels: tuple[Any, ...]
    label_type: str
    max_length: int
    packed: bool
    loss_on: str

    @property
    def inputs(self) -> list[str]:
        """Return the columns of numbers that the model gets."""
        return ["input_ids", "position_ids"] if self.packed else ["input_ids"]


def choose_task(value: Callable[[str], Any], frame: DataFrame) -> TextTask:
    """Choose the task from parameters and types of the DataFrame. Without names of the classes it runs a Spark job.

    Args:
        value: gives a parameter by its name.

    Raises:
        DataError: a column is missing, or its type does not fit.
        ValueError: parameters contradict each other.
    """
    text, label = value("text_col"), value("label_col")
    text_type = _find_type(frame, text, "text_col")
    label_type = None if label is None else _find_type(frame, label, "label_col")
    if isinstance(value("validation"), str):
        check_marker(value("validation"), _find_type(frame, value("validation"), "validation").simpleString())
    words = _is_array(text_type, "string")
    task = value("task") or _infer_task(label_type)
    if task == "causal" and label is not None:
        raise ValueError(f"task='causal' learns the texts themselves: leave label_col={label!r} out.")
    if task != "causal" and label is None:
        raise ValueError(f"task={task!r} needs label_col, the column with the classes.")
    chat = task == "causal" and _is_chat(text_type)
    expected = "an array of words" if task == "token_classification" else "a text"
    if words != (task == "token_classification") or not (words or chat or text_type.typeName() in _TEXTS):
        chats = ", or an array of structs with the texts role and content" if task == "causal" else ""
        raise DataError(f"column {text!r} has type {text_type.simpleString()}; task={task!r} needs {expected}{chats}.")
    item = label_type
    if label_type is not None:
        if (label_type.typeName() == "array") != (task == "token_classification"):
            raise DataError(f"column {label!r} has type {label_type.simpleString()}, which is not for task={task!r}.")
        item = getattr(label_type, "elementType", label_type)
        if item.typeName() not in _CLASS_TYPES:
            raise DataError(
                f"column {label!r} has type {label_type.simpleString()}; classes are texts, integers or booleans. Cast "
                "the column."
            )
    return TextTask(
        task=task,
        text=text,
        label=label,
        chat=chat,
        labels=() if label is None else _find_classes(frame, label, task, value("labels")),
        label_type="string" if item is None else item.simpleString(),
        max_length=value("max_length"),
        packed=task == "causal" and value("packing"),
        loss_on=value("loss_on"),
    )


_TEXTS = ("string", "varchar", "char")


def _find_type(frame: DataFrame, name: str, param: str) -> DataType:
    for field in frame.schema.fields:
        if field.name == name:
            return field.dataType
    names = [field.name for field in frame.schema.fields]
    raise DataError(f"{param}={name!r}: the DataFrame has no column {name!r}, but {names}." + did_you_mean(name, names))


def _infer_task(label_type: DataType | None) -> str:
    if label_type is None:
        return "causal"
    return "token_classification" if label_type.typeName() == "array" else "classification"


def _is_array(kind: DataType, of: str) -> bool:
    return kind.typeName() == "array" and kind.elementType.typeName() == of  # type: ignore[attr-defined]


def _is_chat(kind: DataType) -> bool:
    if not _is_array(kind, "struct"):
        return False
    types = {field.name: field.dataType.typeName() for field in kind.elementType.fields}  # type: ignore[attr-defined]
    return types.get("role") == "string" and types.get("content") == "string"


def _find_classes(frame: DataFrame, label: str, task: str, named: Sequence[Any] | None) -> tuple[Any, ...]:
    from pyspark.sql import functions

    if named:
        if len(set(named)) < len(named):
            raise ValueError(f"labels contains a class twice: {named!r:.200}.")
        return tuple(named)
    column = functions.col(quote(label))
    values = frame.select((functions.explode(column) if task == "token_classification" else column).alias("label"))
    classes = [row[0] for row in values.dropna().distinct().limit(_MOST_CLASSES + 1).collect()]
    if len(classes) > _MOST_CLASSES:
        raise DataError(f"column {label!r} has more than {_MOST_CLASSES} different values: they are no classes.")
    if not classes and not frame.take(1):
        raise DataError("the DataFrame has no rows.")
    if len(classes) < 2:
        raise DataError(f"column {label!r} has the classes {classes}; a classifier needs two or more.")
    return tuple(sorted(classes))
