"""Adapters of peft: what is trained and saved beside a pretrained model, and what they need to be loaded elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.extensions.transformers.pretrained import Pretrained

_OF_PEFT = {"causal": "CAUSAL_LM", "classification": "SEQ_CLS", "token_classification": "TOKEN_CLS"}


def add_adapter(
    net: nn.Module, task: str, lora: Mapping[str, Any], source: Pretrained, missing: Collection[str]
) -> nn.Module:
    """Add an adapter that contains all parameters that the pretrained model's files do not have.

    Args:
        task: one of `params.TASKS`.
        lora: arguments of peft's LoraConfig.
        missing: names of parameters of `net` that are new.

    Raises:
        DataError: an adapter cannot contain a new parameter.
        ValueError: peft does not take the arguments.
    """
    import peft

    arguments: dict[str, Any] = {"task_type": _OF_PEFT[task], **lora}
    if new := find_new_modules(net, missing):
        arguments["modules_to_save"] = [*(arguments.get("modules_to_save") or ()), *new]
    if source.name:
        # Without it peft writes the folder of this host's cache.
        arguments = {"revision": source.revision, **arguments}
    try:
        adapted = peft.get_peft_model(net, peft.LoraConfig(**arguments))
    except (TypeError, ValueError) as error:
        raise ValueError(f"lora={dict(lora)!r:.200} does not fit the model: {error}") from error
    if source.name:
        adapted.peft_config["default"].base_model_name_or_path = source.name
    result: nn.Module = adapted
    return result


def find_new_modules(net: nn.Module, missing: Collection[str]) -> list[str]:
    """Return the modules that have the parameters `missing`: peft saves whole modules.

    Raises:
        DataError: such a module contains others, whose parameters are not missing.
    """
    modules = dict.fromkeys(name.rpartition(".")[0] for name in sorted(missing))
    for name in modules:
        if any(
            f"{name}.{child}".lstrip(".") not in missing for child in _list_child_parameters(net.get_submodule(name))
        ):
            new = [parameter for parameter in sorted(missing) if parameter.rpartition(".")[0] == name]
            raise DataError(
                f"the pretrained model has no {', '.join(new)}, which would be random in each process, and an adapter "
                "cannot contain it: leave lora out, or save the model with this parameter first."
            )
    return list(modules)


def _list_child_parameters(module: nn.Module) -> list[str]:
    direct = {name for name, _ in module.named_parameters(recurse=False)}
    return [name for name, _ in module.named_parameters() if name not in direct]


def get_base_dtype(net: Any) -> str:
    """Return the type of the numbers below an adapter, such as "float32"."""
    base = net.get_base_model()
    floating = (parameter.dtype for parameter in base.parameters() if parameter.is_floating_point())
    return str(next(floating, torch.float32)).removeprefix("torch.")
