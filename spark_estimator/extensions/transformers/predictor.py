"""Classifies texts and words, and generates: what Spark's Python workers run for `TransformersModel.transform`."""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pyarrow
import torch
from numpy.typing import NDArray

from spark_estimator.data.columns import did_you_mean
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.inference.prediction_columns import make_struct, to_arrow_type
from spark_estimator.estimators.inference.predictor import ROWS_ALIKE, Predictor, insert_nulls
from spark_estimator.estimators.torch.device import (
    choose_device,
    get_device,
    move_model,
    move_tensor,
    use_inference_mode,
)
from spark_estimator.estimators.torch.predictor import dump_object, load_object
from spark_estimator.extensions.transformers.padding import get_filling, padding_changes_scores
from spark_estimator.extensions.transformers.special_tokens import count_suffix_tokens
from spark_estimator.extensions.transformers.texts import to_rows
from spark_estimator.extensions.transformers.tokens import is_missing, unpickle_tokenizer

# A row is as many tokens long as a multiple of it: other lengths of the padding could round a row's numbers otherwise.
_WIDTHS_ALIKE = 16

# Arguments of `generate` for which padding before a text makes no difference.
_OF_NEW_TOKENS = {
    *("max_new_tokens", "min_new_tokens", "do_sample", "num_beams", "early_stopping", "length_penalty"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits"),
    *("eos_token_id", "pad_token_id", "bos_token_id", "use_cache"),
}
# Entries of a model's generation config for which it makes one, and their values without effect.
_OF_SEEN_TOKENS: Mapping[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "watermarking_config": None,
    "penalty_alpha": None,
    "prompt_lookup_num_tokens": None,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "forced_bos_token_id": None,
}


@dataclass(frozen=True)
class _Tokens:
    """A text.

    Attributes:
        ids: of its tokens.
        words: [tokens] the number of the word that a token is of, or None; empty where words do not matter.
        count: of its words, or characters.
        is_chat: it is the text of one.
    """

    ids: list[int]
    words: list[int | None]
    count: int
    is_chat: bool = False


@dataclass(frozen=True)
class TextPredictor(Predictor):
    """A model and its tokenizer, serialized for Spark's workers.

    Attributes:
        task: one of `params.TASKS`.
        max_length: tokens of a text; the rest is cut. A causal model gets its last ones.
        generation: arguments of the model's ``generate``.
        as_json: chats are JSON strings.
        text: the column of texts, for `predict_frame`.
    """

    task: str = ""
    max_length: int = 0
    generation: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False
    text: str = ""

    @classmethod
    def from_model(cls, net: Any, tokenizer: Any, batch_size: int, **options: Any) -> TextPredictor:
        """Return a predictor with a copy of the model as it is now, which has a padding token (`settle_padding`)."""
        return cls(dump_object((net, pickle.dumps(tokenizer))), RowEncoder(("text",)), (), batch_size, **options)

    def load(self) -> tuple[Any, Any]:
        """See `Predictor.load`: the model and the tokenizer."""
        net, tokenizer = load_object(self.open_payload())
        return net.eval(), unpickle_tokenizer(tokenizer)

    def move_to_device(self, model: Any) -> tuple[Any, Any]:
        """See `Predictor.move_to_device`."""
        net, tokenizer = model
        return move_model(net, choose_device(self.device)), tokenizer

    def call(self, model: Any, matrices: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Raise NotImplementedError: see `predict_texts`."""
        raise NotImplementedError

    def predict_batch(self, batch: pyarrow.RecordBatch) -> pyarrow.StructArray:
        """See `Predictor.predict_batch`; null where the text is."""
        return self._predict_struct(batch.column(0).to_pylist())

    def predict_frame(self, features: Any) -> Any:
        """See `Predictor.predict_frame`. NaN and pandas.NA in the column of texts are read as null."""
        texts = to_rows(features, self.text, self.task)
        return self.to_frame(self._predict_struct(texts), getattr(features, "index", None))

    def _predict_struct(self, texts: Sequence[Any]) -> pyarrow.StructArray:
        if self.as_json:
            texts = [None if text is None else json.loads(text) for text in texts]
        mask = numpy.array([not is_missing(text, self.task) for text in texts], bool)
        present = [text for text, is_known in zip(texts, mask, strict=True) if is_known]
        return insert_nulls(self._make_struct(self.predict_texts(present)), mask)

    def _make_struct(self, outputs: Sequence[Any]) -> pyarrow.StructArray:
        if self.task == "classification":
            width = self.columns[0].width
            return make_struct(self.columns, [numpy.array(outputs, numpy.float32).reshape(-1, width)])
        column = self.columns[0]
        if column.classes:
            outputs = [[None if number is None else column.classes[number] for number in row] for row in outputs]
        return pyarrow.StructArray.from_arrays([pyarrow.array(outputs, to_arrow_type(column.kind))], ["p0"])

    def predict_texts(self, texts: Sequence[Any]) -> list[Any]:
        """Return [texts] scores of the classes, the class of each word, or the generated text; None: a prompt without a
        token.

        Texts of similar length share a call of the model; of the same length, where the model or a generation counts
        padding. The width to which a text is padded depends on this text alone, so that its output does not depend on
        the others.
        """
        net, tokenizer = self.get_model()
        encoded = self._encode(net, tokenizer, texts)
        exact = self._counts_padding(net)
        at_once = 1 if self.task == "causal" and _is_assisted(net, self.generation) else self.batch_size
        of_width: dict[int, list[int]] = {}
        for number, tokens in enumerate(encoded):
            length = len(tokens.ids)
            if length:
                of_width.setdefault(length if exact else self._choose_width(length), []).append(number)
        method = {
            "causal": self._generate,
            "classification": self._compute_scores,
            "token_classification": self._classify_words,
        }
        outputs: list[Any] = [None] * len(texts)
        for width, numbers in sorted(of_width.items()):
            for start in range(0, len(numbers), at_once):
                batch = numbers[start : start + at_once]
                with use_inference_mode(get_device(net), self.precision, len(batch)):
                    results = method[self.task](net, tokenizer, [encoded[number] for number in batch], width)
                for number, result in zip(batch, results, strict=True):
                    outputs[number] = result
        return outputs

    def _counts_padding(self, net: Any) -> bool:
        if self.task == "causal" and _counts_tokens_before(net, self.generation):
            return True
        width = self._choose_width(1)
        with use_inference_mode(get_device(net), self.precision, 1):
            return padding_changes_scores(net, self.task, width, self.precision)

    def _choose_width(self, tokens: int) -> int:
        """Return the padded width, in tokens, of a text of `tokens` tokens."""
        return max(tokens, min(-(-max(1, tokens) // _WIDTHS_ALIKE) * _WIDTHS_ALIKE, self.max_length))

    def _encode(self, net: Any, tokenizer: Any, texts: Sequence[Any]) -> list[_Tokens]:
        """Return [texts] the tokens of each. A text without a token becomes padding, and a prompt the token that
        begins texts, if there is one, as in ``generate``.
        """
        options: dict[str, Any] = {}
        filler = [get_filling(net)]
        if self.task == "causal":
            first = net.generation_config.bos_token_id
            first = tokenizer.bos_token_id if first is None else first
            filler = [] if first is None else [int(first)]
        suffix = 0
        prompts = list(texts)
        if self.task == "causal":
            tokenizer.truncation_side = "left"  # the model continues the text at its end
            if prompts and not isinstance(prompts[0], str):
                prompts = [
                    tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in prompts
                ]
                options["add_special_tokens"] = False
            else:
                suffix = count_suffix_tokens(tokenizer)  # it would end the text, which is to be continued
        if self.task == "token_classification":
            options["is_split_into_words"] = True
        if not prompts:
            return []
        encoded = tokenizer(prompts, truncation=True, max_length=self.max_length + suffix, **options)
        of_words = self.task == "token_classification"
        return [
            _Tokens(
                ids[: len(ids) - suffix] or filler,
                encoded.word_ids(number) if of_words else [],
                len(prompts[number]),
                "add_special_tokens" in options,
            )
            for number, ids in enumerate(encoded["input_ids"])
        ]

    def _make_tensors(
        self, net: Any, tokenizer: Any, batch: Sequence[_Tokens], width: int, *, rows: int, left: bool
    ) -> dict[str, Any]:
        """Return a batch as tensors of [rows, width] on the model's device, with the padding masked.

        Args:
            rows: at least the number of texts; the last text fills the other rows.
            left: the padding is before the texts.
        """
        ids = torch.full((rows, width), get_filling(net))
        mask = torch.zeros((rows, width), dtype=torch.long)
        for number in range(rows):
            tokens = batch[min(number, len(batch) - 1)].ids
            columns = slice(width - len(tokens), None) if left else slice(0, len(tokens))
            ids[number, columns] = torch.tensor(tokens)
            mask[number, columns] = 1
        device = get_device(net)
        return {"input_ids": move_tensor(ids, device), "attention_mask": move_tensor(mask, device)}

    def _compute_logits(self, net: Any, tokenizer: Any, batch: Sequence[_Tokens], width: int) -> torch.Tensor:
        """Return [texts, ...] logits."""
        rows = len(batch) + -len(batch) % ROWS_ALIKE
        tensors = self._make_tensors(net, tokenizer, batch, width, rows=rows, left=False)
        logits: torch.Tensor = net(**tensors).logits[: len(batch)]
        return logits

    def _compute_scores(self, net: Any, tokenizer: Any, batch: Sequence[_Tokens], width: int) -> list[Any]:
        return list(self._compute_logits(net, tokenizer, batch, width).float().cpu().numpy().astype(numpy.float32))

    def _classify_words(self, net: Any, tokenizer: Any, batch: Sequence[_Tokens], width: int) -> list[Any]:
        logits = self._compute_logits(net, tokenizer, batch, width)
        unknown = logits.isnan().any(-1).tolist()  # a class of these scores would be none at all
        classes = logits.argmax(-1).tolist()
        results = []
        for number, tokens in enumerate(batch):
            first: dict[int, int | None] = {}
            for position, word in enumerate(tokens.words):
                if word is not None:
                    first.setdefault(word, None if unknown[number][position] else classes[number][position])
            results.append([first.get(word) for word in range(tokens.count)])  # a word that is cut off has none
        return results

    def _generate(self, net: Any, tokenizer: Any, batch: Sequence[_Tokens], width: int) -> list[Any]:
        tensors = self._make_tensors(net, tokenizer, batch, width, rows=len(batch), left=True)
        options = {"pad_token_id": get_filling(net), "num_return_sequences": 1, **self.generation}
        if options.get("stop_strings") or getattr(net.generation_config, "stop_strings", None):
            options["tokenizer"] = tokenizer
        if net.generation_config.eos_token_id is None:
            options.setdefault("eos_token_id", tokenizer.eos_token_id)
        rows = net.generate(**tensors, **options)[:, width:].tolist()
        return [_decode_continuation(tokenizer, tokens, row) for tokens, row in zip(batch, rows, strict=True)]


def _decode_continuation(tokenizer: Any, prompt: _Tokens, tokens: list[int]) -> str:
    """Return the generated text: what follows the prompt's text, of a chat without white space around it."""
    if prompt.is_chat:
        answer: str = tokenizer.decode(tokens, skip_special_tokens=True)
        return answer.strip()
    # Some tokenizers decode a first token without the space that it begins with.
    before, whole = tokenizer.batch_decode([prompt.ids, prompt.ids + tokens], skip_special_tokens=True)
    continuation: str = whole[len(before) :]
    return continuation


def _is_assisted(net: Any, generation: Mapping[str, Any]) -> bool:
    """Return whether a generation drafts tokens, which transformers does for one text at a time."""
    return any(
        generation.get(name) or getattr(net.generation_config, name, None)
        for name in ("prompt_lookup_num_tokens", "assistant_early_exit")
    )


def _counts_tokens_before(net: Any, generation: Mapping[str, Any]) -> bool:
    """Return whether a generation depends on the tokens before it, or on their number, padding included."""
    config = net.generation_config
    of_model = any(getattr(config, name, None) not in (None, default) for name, default in _OF_SEEN_TOKENS.items())
    return of_model or not generation.keys() <= _OF_NEW_TOKENS


def check_generation(generation: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments that no model's generate() takes, or that give several texts for one."""
    import transformers
    from transformers.generation import GenerationMixin

    arguments = {*transformers.GenerationConfig().to_dict(), *inspect.signature(GenerationMixin.generate).parameters}
    for name in generation:
        if name not in arguments:
            raise ValueError(f"generation: generate() takes no argument {name!r}.{did_you_mean(name, arguments)}")
    if generation.get("num_return_sequences", 1) != 1:
        raise ValueError("generation: num_return_sequences must be 1: a row has one text as its prediction.")
