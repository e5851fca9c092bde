"""Turns texts into rows of token numbers: what Spark's Python workers run before the training, a partition at a time.

Every row of the result is as long as the model is trained with. What a text does not fill is `PADDING`, and `NO_TARGET`
among the labels, which PyTorch's losses leave out. A causal model's labels are the next tokens.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pyarrow

from spark_estimator.data.quoting import quote
from spark_estimator.data.row_encoder import make_marks_error, read_marks
from spark_estimator.errors import DataError
from spark_estimator.extensions.transformers.task import TextTask

PADDING = -1
NO_TARGET = -100
# Rows of a batch of the result, and blocks that wait for short texts.
_ROWS, _OPEN = 256, 16

#: Token numbers and labels of one text.
Piece = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Tokenising:
    """The tokenizer and what it is for; is sent to Spark's workers.

    Attributes:
        tokenizer: pickled.
        marker: the column that marks rows for validation, which is kept; None: there is none.
        apply_null_rules: rows with a null are left out; False: they are an error.
    """

    task: TextTask
    tokenizer: bytes = field(repr=False)
    marker: str | None = None
    apply_null_rules: bool = False

    @property
    def schema(self) -> str:
        """Return the schema of the result, in Spark's words."""
        labels = "int" if self.task.task == "classification" else "array<int>"
        marker = "" if self.marker is None else f", {quote(self.marker)} boolean"
        return ", ".join(f"{name} array<int>" for name in self.task.inputs) + f", labels {labels}{marker}"

    @property
    def columns(self) -> list[str]:
        """Return the columns to read."""
        return [name for name in (self.task.text, self.task.label, self.marker) if name is not None]

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Tokenise batches for ``mapInArrow``."""
        encoder = Encoder(self.task, unpickle_tokenizer(self.tokenizer))
        packers = {mark: _Packer(self.task.max_length) for mark in (False, True)}
        for batch in batches:
            columns = self._read_columns(batch)
            for start in range(0, len(columns[0]), _ROWS):
                texts, labels, marks = ([*column[start : start + _ROWS]] for column in columns)
                if not self.task.packed:
                    yield self._make_batch([*encoder.encode(texts, labels)], marks)
                    continue
                for pieces, mark in zip(encoder.split(texts), marks, strict=True):
                    for piece in pieces:
                        packers[bool(mark)].add(piece)
                for mark, packer in packers.items():
                    if packer.full:
                        yield self._make_packed_batch(packer.take(), mark)
        for mark, packer in packers.items():
            if blocks := packer.take_rest():
                yield self._make_packed_batch(blocks, mark)

    def _read_columns(self, batch: pyarrow.RecordBatch) -> list[list[Any]]:
        """Return [texts, labels, marks] of rows without nulls; of a batch with `columns`, by their places."""
        arrays = dict(zip(self.columns, batch.columns, strict=True))
        nothing = [None] * batch.num_rows
        texts = arrays[self.task.text].to_pylist()
        labels = nothing if self.task.label is None else arrays[self.task.label].to_pylist()
        marks = nothing if self.marker is None else read_marks(arrays[self.marker]).to_pylist()
        whole = [
            not is_missing(text, self.task.task) and (label is not None or self.task.label is None)
            for text, label in zip(texts, labels, strict=True)
        ]
        if not all(whole) and not self.apply_null_rules:
            number = whole.index(False)
            if is_missing(texts[number], self.task.task) and not has_null(texts[number]):
                raise DataError(
                    f"column {self.task.text!r} holds a chat without messages. nulls='drop' leaves such rows out."
                )
            name = self.task.text if has_null(texts[number]) else self.task.label
            inside = " inside of an array" if name == self.task.text and texts[number] is not None else ""
            raise DataError(f"column {name!r} holds a null{inside}. nulls='drop' leaves such rows out.")
        columns = [
            [value for value, right in zip(column, whole, strict=True) if right] for column in (texts, labels, marks)
        ]
        if self.marker is not None and None in columns[2]:
            raise make_marks_error()
        return columns

    def _make_batch(self, rows: Sequence[tuple[list[int], Any]], marks: Sequence[Any]) -> pyarrow.RecordBatch:
        length = self.task.max_length
        arrays = [_make_lists([ids for ids, _ in rows], length, PADDING)]
        labels = [labels for _, labels in rows]
        if self.task.task == "classification":
            arrays.append(pyarrow.array(labels, pyarrow.int32()))
        else:
            arrays.append(_make_lists(labels, length, NO_TARGET))
        return self._make_named_batch(arrays, marks)

    def _make_packed_batch(self, blocks: Sequence[Sequence[Piece]], mark: bool) -> pyarrow.RecordBatch:
        length = self.task.max_length
        joined: list[tuple[list[int], list[int], list[int]]] = []
        for block in blocks:
            ids = [token for piece, _ in block for token in piece]
            # Each text begins at 0, which separates it from the text before in attention; so does each padding token.
            positions = [position for piece, _ in block for position in range(len(piece))]
            joined.append((ids, positions, [label for _, labels in block for label in labels]))
        arrays = [
            _make_lists([row[0] for row in joined], length, PADDING),
            _make_lists([row[1] for row in joined], length, 0),
            _make_lists([row[2] for row in joined], length, NO_TARGET),
        ]
        return self._make_named_batch(arrays, [mark] * len(joined))

    def _make_named_batch(self, arrays: list[pyarrow.Array], marks: Sequence[Any]) -> pyarrow.RecordBatch:
        names = [*self.task.inputs, "labels"]
        if self.marker is not None:
            arrays.append(pyarrow.array([None if mark is None else bool(mark) for mark in marks], pyarrow.bool_()))
            names.append(self.marker)
        return pyarrow.RecordBatch.from_arrays(arrays, names=names)


def is_missing(text: Any, task: str) -> bool:
    """Return whether there is nothing to learn or to predict from: `has_null`, or a chat without messages."""
    return has_null(text) or (task == "causal" and not isinstance(text, str) and not len(text))


def has_null(text: Any) -> bool:
    """Return whether a text is null, or NaN or NA, as pandas has it; or a word, or a message's role or content is
    null.
    """
    if isinstance(text, str):
        return False
    if text is None or isinstance(text, float) or not hasattr(text, "__iter__"):
        return True
    return any(
        item is None or (isinstance(item, Mapping) and None in (item.get("role"), item.get("content"))) for item in text
    )


class Encoder:
    """Encodes texts for a task.

    Args:
        tokenizer: a fast one of transformers.
    """

    def __init__(self, task: TextTask, tokenizer: Any) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._numbers = {label: number for number, label in enumerate(task.labels)}
        # A text without a token needs one that the model sees.
        self._filler = next(
            (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0
        )

    def encode(self, texts: Sequence[Any], labels: Sequence[Any]) -> Iterator[tuple[list[int], Any]]:
        """Yield a row for each text, but several for the long texts of a causal model: token numbers, and label or
        labels.
        """
        if self._task.task == "causal":
            for pieces in self.split(texts):
                yield from pieces
            return
        words = self._task.task == "token_classification"
        encoded = self._tokenizer(
            list(texts), truncation=True, max_length=self._task.max_length, is_split_into_words=words
        )
        for number, (ids, label) in enumerate(zip(encoded["input_ids"], labels, strict=True)):
            if words:
                yield ids or [self._filler], self._label_words(texts[number], label, encoded.word_ids(number))
            else:
                yield ids or [self._filler], self._get_number(label)

    def split(self, texts: Sequence[Any]) -> Iterator[list[Piece]]:
        """Yield [texts] the pieces of each text for a causal model."""
        length = self._task.max_length
        if self._task.chat:
            for messages in texts:
                ids, labels = self.encode_chat(messages)
                yield [(ids[:length], [*labels[: length - 1], NO_TARGET][: len(ids)])]
            return
        end = self._tokenizer.eos_token_id
        # It would warn of texts that are longer than the model takes, and they are cut below.
        for ids in self._tokenizer(list(texts), verbose=False)["input_ids"]:
            if end is not None and ids[-1:] != [end]:
                ids = [*ids, end]
            parts = [ids[start : start + length] for start in range(0, len(ids), length)]
            yield [(part, [*part[1:], NO_TARGET]) for part in parts]

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> Piece:
        """Return token numbers of a conversation, and the next tokens that are learned."""
        template = self._tokenizer.apply_chat_template
        text = template(messages, tokenize=False)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids = encoded["input_ids"]
        learned = [True] * len(ids)
        if self._task.loss_on == "assistant":
            spans = []
            for number, message in enumerate(messages):
                if message["role"] != "assistant":
                    continue
                before = template(messages[:number], tokenize=False, add_generation_prompt=True) if number else ""
                after = template(messages[: number + 1], tokenize=False)
                if not (text.startswith(before) and text.startswith(after.rstrip())):
                    raise DataError(
                        "the tokenizer's chat template writes a message in another way when others follow, so that the "
                        "assistant's words can't be found in the text: use loss_on='all'."
                    )
                spans.append((len(before), len(after)))
            # An empty token has no position in the text.
            learned = [
                any(start <= left and right <= end for start, end in spans) and left < right
                for left, right in encoded["offset_mapping"]
            ]
        targets = [token if counts else NO_TARGET for token, counts in zip(ids, learned, strict=True)]
        return ids, [*targets[1:], NO_TARGET][: len(ids)]

    def _get_number(self, label: Any) -> int:
        number = self._numbers.get(label)
        if number is None:
            raise DataError(
                f"column {self._task.label!r} holds {label!r}, which is not among "
                f"labels={list(self._task.labels)!r:.200}."
            )
        return number

    def _label_words(self, words: Sequence[str], labels: Sequence[Any], positions: Sequence[int | None]) -> list[int]:
        """Return the label of each word at its first token."""
        if len(words) != len(labels):
            raise DataError(
                f"a row has {len(words)} words in {self._task.text!r} and {len(labels)} classes in "
                f"{self._task.label!r}; each word needs a class."
            )
        before = [None, *positions[:-1]]
        return [
            NO_TARGET
            if position is None or position == previous or labels[position] is None
            else self._get_number(labels[position])
            for position, previous in zip(positions, before, strict=True)
        ]


class _Packer:
    """Puts texts together into blocks: each into the first open one with room."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._open: list[tuple[list[Piece], int]] = []
        self._closed: list[list[Piece]] = []

    @property
    def full(self) -> bool:
        return len(self._closed) >= _ROWS

    def add(self, piece: Piece) -> None:
        size = len(piece[0])
        if not size:
            return
        for number, (block, used) in enumerate(self._open):
            if used + size <= self._length:
                block.append(piece)
                self._open[number] = (block, used + size)
                return
        if len(self._open) == _OPEN:
            fullest = max(range(_OPEN), key=lambda number: self._open[number][1])
            self._closed.append(self._open.pop(fullest)[0])
        self._open.append(([piece], size))

    def take(self) -> list[list[Piece]]:
        closed, self._closed = self._closed, []
        return closed

    def take_rest(self) -> list[list[Piece]]:
        return [*self.take(), *(block for block, _ in self._open)]


def unpickle_tokenizer(pickled: bytes) -> Any:
    """Return the tokenizer, in a worker that has one task at a time: without its own threads."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return pickle.loads(pickled)  # noqa: S301  # from the driver, whose code runs here anyway


def _make_lists(rows: Sequence[Sequence[int]], length: int, filling: int) -> pyarrow.Array:
    matrix = numpy.full((len(rows), length), filling, numpy.int32)
    for number, row in enumerate(rows):
        matrix[number, : len(row)] = row
    offsets = numpy.arange(0, matrix.size + 1, length, dtype=numpy.int32)
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets), pyarrow.array(matrix.reshape(-1)))
