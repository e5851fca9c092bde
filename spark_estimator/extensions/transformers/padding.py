"""Finds out whether padding changes what a model computes for a text, though the mask leaves it out."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from spark_estimator.estimators.torch.device import get_device, move_tensor

# The share of the largest score by which scores may differ: rounding, with 32 bits and with 16.
_ROUNDING, _COARSE_ROUNDING = 1e-4, 3e-2
_TRIED_TOKENS = 5
_known: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()


def get_filling(net: Any) -> int:
    """Return the token that rows are filled up with."""
    return int(net.config.get_text_config().pad_token_id)


def padding_changes_scores(net: Any, task: str, width: int, precision: str | None = None) -> bool:
    """Return whether padding a text to `width` tokens changes its scores; tried once for a model.

    It does in models that ignore the mask (RWKV), that count positions from the beginning of the row (BART, with
    padding before the text), or that mix all places of a row (FNet). If the trial raises an error, the answer is
    True.

    Args:
        task: one of `params.TASKS`; padding is before the text of a causal model, and behind others.
        precision: of the predictions; None: the model's own types.
    """
    changes = _known.get(net)
    if changes is None:
        try:
            changes = _try_padding(net, task, width, precision)
        except Exception:  # each model has its own errors
            changes = True
        _known[net] = changes
    return changes


def _try_padding(net: Any, task: str, width: int, precision: str | None) -> bool:
    length = min(_TRIED_TOKENS, width - 1)
    device = get_device(net)
    with torch.random.fork_rng([]), torch.inference_mode():
        tokens = _choose_tokens(net, length)
        position = slice(width - length, None) if task == "causal" else slice(0, length)
        ids, mask = torch.full((1, width), get_filling(net)), torch.zeros((1, width), dtype=torch.long)
        ids[0, position], mask[0, position] = tokens, 1
        alone = _compute_scores(
            net, task, move_tensor(tokens[None], device), move_tensor(torch.ones_like(tokens)[None], device)
        )
        padded = _compute_scores(net, task, move_tensor(ids, device), move_tensor(mask, device))
    if task == "token_classification":
        padded = padded[:, :length]
    is_fine = precision is None and net.dtype in (torch.float32, torch.float64)
    limit = (_ROUNDING if is_fine else _COARSE_ROUNDING) * float(alone.abs().max())
    return not bool((alone - padded).abs().max() <= limit)  # also where a score is NaN


def _choose_tokens(net: Any, length: int) -> torch.Tensor:
    """Return some tokens, [length], without special ones that the config names."""
    config = net.config.get_text_config()
    special: set[Any] = {get_filling(net)}
    for name in ("eos_token_id", "bos_token_id", "sep_token_id", "cls_token_id"):
        value = getattr(config, name, None)
        special |= set(value) if isinstance(value, (list, tuple)) else {value}
    count = int(getattr(config, "vocab_size", 256))
    plain = [token for token in range(count) if token not in special]
    return torch.tensor([plain[len(plain) * number // length] for number in range(length)])


def _compute_scores(net: Any, task: str, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if task != "causal":
        scores: torch.Tensor = net(input_ids=ids, attention_mask=mask).logits
        return scores.float().cpu()
    result = net.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=1,
        do_sample=False,
        num_beams=1,
        pad_token_id=get_filling(net),
        return_dict_in_generate=True,
        output_logits=True,
    )
    first: torch.Tensor = result.logits[0]
    return first.float().cpu()
