"""Tiny models with random numbers, a tokenizer made on the spot, and sentences to learn: nothing is downloaded."""

from __future__ import annotations

import random
from typing import Any

ANIMALS = ("cat", "dog", "fox", "hen", "owl", "pig")
GOOD, BAD = ("kind", "calm", "brave"), ("cruel", "loud", "greedy")
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<user>", "<assistant>", "<end>"]
_CHAT = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def sentences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of ``text`` and ``label``: 1 where the last word of the text is a good one. Their lengths differ."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label = chance.randrange(2)
        middle = " and the ".join(chance.sample(ANIMALS, chance.randint(1, 4)))
        rows.append({"text": f"the {middle} is {chance.choice(GOOD if label else BAD)}", "label": label})
    return rows


def chats(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of ``messages``: a question and its answer."""
    return [
        {
            "messages": [
                {"role": "user", "content": row["text"]},
                {"role": "assistant", "content": "good" if row["label"] else "bad"},
            ]
        }
        for row in sentences(count, seed)
    ]


def tokenizer() -> Any:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = [row["text"] for row in sentences(200)] + ["good bad"]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=_SPECIAL, show_progress=False))
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="<end>",
        chat_template=_CHAT,
        model_max_length=64,
    )


def causal(seed: int = 5, **options: Any) -> Any:
    """A language model of two layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": 32,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "max_position_embeddings": 64,
                "pad_token_id": 0,
                "bos_token_id": 2,
                "eos_token_id": 6,
                **options,
            }
        )
    )


def classifier(seed: int = 5, **options: Any) -> Any:
    """A model of two layers that puts a text into one of two classes."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    return BertForSequenceClassification(
        BertConfig(
            **{
                "vocab_size": 32,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "max_position_embeddings": 64,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
                "num_labels": 2,
                **options,
            }
        )
    )
