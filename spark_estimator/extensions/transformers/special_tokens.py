"""Tokens that fill up rows and end texts: the same for a model, its tokenizer, the training and predictions."""

from __future__ import annotations

from typing import Any

from torch import nn

from spark_estimator.errors import DataError


def settle_padding(net: Any, tokenizer: Any) -> int:
    """Choose the padding token, and put it into the model's config, which is saved. Return its number.

    It is the tokenizer's, else the config's, else the one that ends texts. Some models (RoBERTa) count positions
    from their padding token: they keep theirs.

    Raises:
        DataError: there is none.
    """
    of_text = net.config.get_text_config()
    configured = _find_first(of_text.pad_token_id, net.config.pad_token_id)
    if configured is not None and _find_padding_position(net) is not None:
        chosen = configured
    else:
        end = of_text.eos_token_id
        end = end[0] if isinstance(end, (list, tuple)) and end else end
        chosen = _find_first(tokenizer.pad_token_id, configured, tokenizer.eos_token_id, end)
    if chosen is None:
        raise DataError(
            f"neither the tokenizer nor the config of {type(net).__name__} has a padding token or a token that ends "
            "texts: set tokenizer.pad_token."
        )
    of_text.pad_token_id = net.config.pad_token_id = int(chosen)
    return int(chosen)


def settle_end(net: Any, tokenizer: Any) -> None:
    """Add the tokenizer's token at the end of a text, with which texts are learned, to those that end a generation."""
    end, config = tokenizer.eos_token_id, getattr(net, "generation_config", None)
    if end is None or config is None:
        return
    ends = config.eos_token_id
    if ends is None:
        config.eos_token_id = end
    elif end not in (end_tokens := list(ends) if isinstance(ends, (list, tuple)) else [ends]):
        config.eos_token_id = [*end_tokens, end]


def count_suffix_tokens(tokenizer: Any) -> int:
    """Return the number of tokens that the tokenizer adds after a text."""
    special = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return special[::-1].index(0) if 0 in special else 0


def _find_first(*tokens: Any) -> Any:
    return next((token for token in tokens if token is not None), None)


def count_positions(config: Any) -> int | None:
    """Return the number of positions that a model has; None: any number, for which XLNet's config has -1."""
    number = getattr(config.get_text_config(), "max_position_embeddings", None)
    return None if number is None or number < 1 else int(number)


def get_max_tokens(net: Any) -> int | None:
    """Return the most tokens of a text that a model takes; None: any number."""
    positions, padding = count_positions(net.config), _find_padding_position(net)
    return positions if positions is None or padding is None else positions - padding - 1


def _find_padding_position(net: nn.Module) -> int | None:
    """Return the position of padding in a model that counts tokens' positions from there, as RoBERTa; None in
    others.
    """
    for name, module in net.named_modules():
        padding: int | None = getattr(module, "padding_idx", None)
        if name.rpartition(".")[2] == "position_embeddings" and padding is not None:
            return padding
    return None
