"""Classifies texts and words, and generates: what Spark's Python workers run for `TransformersModel.transform`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy
import pyarrow
import torch

from spark_estimator.data.fields import Array
from spark_estimator.estimators.inference.predictor import Predictor
from spark_estimator.estimators.transformers.tokens import tokenizer_from

_TYPES = {
    "causal": pyarrow.string(),
    "classification": pyarrow.list_(pyarrow.float32()),
    "token_classification": pyarrow.list_(pyarrow.int32()),
}


@dataclass(frozen=True)
class TextPredictor(Predictor):
    """A model and its tokenizer on their way to Spark's workers.

    Attributes:
        task: one of `params.TASKS`.
        max_length: tokens of a text; the rest is cut. A causal model gets its last ones.
        generation: arguments of the model's ``generate``.
        as_json: chats come as JSON.
    """

    task: str = ""
    max_length: int = 0
    generation: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False

    @classmethod
    def of(cls, net: Any, tokenizer: Any, batch_size: int, **options: Any) -> TextPredictor:
        """A predictor with a copy of the model as it is now."""
        payload = cloudpickle.dumps((cloudpickle.dumps(net), pickle.dumps(tokenizer)))
        return cls(payload, (), (), batch_size, **options)

    def loaded(self) -> tuple[Any, Any]:
        """See `Predictor.loaded`: the model and the tokenizer."""
        net, tokenizer = pickle.loads(self.payload)  # noqa: S301  # from the driver
        return pickle.loads(net).eval(), tokenizer_from(tokenizer)  # noqa: S301

    def called(self, model: Any, matrices: Sequence[Array]) -> list[Array]:
        """Not for texts: see `outputs_of_texts`."""
        raise NotImplementedError

    def predictions(self, columns: Sequence[pyarrow.Array]) -> pyarrow.Array:
        """See `Predictor.predictions`: [rows] of struct<o0>; null where the text is."""
        texts = columns[0].to_pylist()
        known = [place for place, text in enumerate(texts) if text is not None]
        read = [json.loads(texts[place]) if self.as_json else texts[place] for place in known]
        outputs: list[Any] = [None] * len(texts)
        for place, output in zip(known, self.outputs_of_texts(read), strict=True):
            outputs[place] = output
        return pyarrow.StructArray.from_arrays([pyarrow.array(outputs, _TYPES[self.task])], ["o0"])

    def outputs_of_texts(self, texts: Sequence[Any]) -> list[Any]:
        """[texts] scores of the classes, the class of each word, or what is generated.

        Texts of like lengths go through the model together.
        """
        net, tokenizer = self.model()
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        outputs: list[Any] = [None] * len(texts)
        method = {
            "causal": self._generated,
            "classification": self._scores,
            "token_classification": self._of_words,
        }[self.task]
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            with torch.inference_mode():
                results = method(net, tokenizer, [texts[place] for place in places])
            for place, result in zip(places, results, strict=True):
                outputs[place] = result
        return outputs

    def _encoded(self, tokenizer: Any, texts: Sequence[Any], **options: Any) -> Any:
        """As tensors, of which the padding is not seen; a text without a token is one of padding."""
        encoded = tokenizer(list(texts), truncation=True, max_length=self.max_length, **options)
        filling = next((token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0)
        rows = [ids or [filling] for ids in encoded["input_ids"]]
        width = max(map(len, rows))
        left = tokenizer.padding_side == "left"
        ids = torch.full((len(rows), width), filling)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            place = slice(width - len(row), None) if left else slice(0, len(row))
            ids[number, place] = torch.tensor(row)
            mask[number, place] = 1
        return encoded, {"input_ids": ids, "attention_mask": mask}

    def _scores(self, net: Any, tokenizer: Any, texts: Sequence[str]) -> list[Any]:
        tokenizer.padding_side = "right"
        _, tensors = self._encoded(tokenizer, texts)
        return list(net(**tensors).logits.float().numpy().astype(numpy.float32))

    def _of_words(self, net: Any, tokenizer: Any, texts: Sequence[Sequence[str]]) -> list[Any]:
        tokenizer.padding_side = "right"
        encoded, tensors = self._encoded(tokenizer, texts, is_split_into_words=True)
        classes = net(**tensors).logits.argmax(-1).tolist()
        results = []
        for number, words in enumerate(texts):
            first: dict[int, int] = {}
            for place, word in enumerate(encoded.word_ids(number)):
                if word is not None:
                    first.setdefault(word, classes[number][place])
            results.append([first.get(word) for word in range(len(words))])  # a word that is cut off has none
        return results

    def _generated(self, net: Any, tokenizer: Any, texts: Sequence[Any]) -> list[Any]:
        tokenizer.padding_side = tokenizer.truncation_side = "left"  # the text goes on where it ends
        prompts, special = list(texts), True
        if prompts and not isinstance(prompts[0], str):
            prompts = [
                tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in prompts
            ]
            special = False
        _, tensors = self._encoded(tokenizer, prompts, add_special_tokens=special)
        filling = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        tokens = net.generate(
            **tensors, **{"pad_token_id": filling, "eos_token_id": tokenizer.eos_token_id, **self.generation}
        )
        made = tokens[:, tensors["input_ids"].shape[1] :]
        return [text.strip() for text in tokenizer.batch_decode(made, skip_special_tokens=True)]
