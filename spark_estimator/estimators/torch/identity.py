"""What distinguishes one training of a PyTorch model from another, as `run_identity` records it."""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch import nn

from spark_estimator.estimators.persistence.run_identity import Identity, get_name, make_base_identity
from spark_estimator.estimators.train_spec import TrainSpec


def make_identity(spec: TrainSpec, checksums: list[int]) -> Identity:
    """Return the identity of a training: its rows, its model, and the parameters that steer it.

    Args:
        checksums: [fields] of all ranks' rows.
    """
    parts = spec.framework
    groups = [len(group["params"]) for group in parts.optimizer.param_groups]
    return {
        **make_base_identity(spec, checksums),
        **describe_module(parts.model),
        "optimizer": [
            f"{get_name(parts.optimizer)} of {groups} parameters",
            *(line for group in parts.optimizer.param_groups for line in _describe_settings(group)),
        ],
        "lr_scheduler": [get_name(parts.scheduler)],
        "loss": [
            f"{share} {get_name(loss)}({', '.join(_describe_settings(_get_settings(loss)))})"
            for share, loss in zip(parts.loss_weights, parts.losses, strict=True)
        ],
        "steps": [
            f"mixed_precision={parts.precision}",
            f"gradient_compression={get_name(parts.compression)}",
            f"train_minibatch_fn={get_name(parts.minibatch)}",
            *parts.settings,
            *parts.recipe.describe(),
        ],
    }


def describe_module(model: Any) -> Identity:
    """Return the modules that a model is made of, and the shapes of its numbers."""
    return {
        "model": [f"{name or 'the model'} of class {get_name(module)}" for name, module in model.named_modules()],
        "model's numbers": [
            f"{name} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            for name, value in model.state_dict().items()
            if hasattr(value, "shape")
        ],
    }


def compute_digest(model: nn.Module) -> str:
    """Return a digest of the model's numbers: the same for the same numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in model.state_dict().items():
        digest.update(name.encode())
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _describe_setting(value: Any) -> str:
    """Return a setting's value, the same in each process: a tensor's by its numbers, an object's by its class."""
    if hasattr(value, "detach"):
        return str(value.detach().cpu().tolist())
    if value is None or isinstance(value, (bool, int, float, str, tuple, list)):
        return repr(value)
    return get_name(value)


def _get_settings(loss: Any) -> dict[str, Any]:
    if isinstance(loss, functools.partial):
        return {**loss.keywords, "arguments": loss.args, "of": loss.func}
    if not hasattr(loss, "_buffers"):
        return {}
    return {**{name: value for name, value in vars(loss).items() if not name.startswith("_")}, **loss._buffers}


def _describe_settings(of: dict[str, Any]) -> list[str]:
    """Return ``name=value`` in the order of names, without the parameters themselves and what no number depends on."""
    settings = sorted((name, value) for name, value in of.items() if name not in ("params", "training"))
    return [f"{name}={_describe_setting(value)}" for name, value in settings]
