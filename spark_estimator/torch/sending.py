"""Prepares modules that PyTorch does not let be copied or pickled, so that they can be sent to processes.

The class of a parametrized module (``weight_norm``, ``spectral_norm``, ``orthogonal``, or the user's parametrization)
is made for that one module, and refuses pickle. Here it is made again where the module is unpickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize


def prepare_to_send(module: nn.Module) -> None:
    """Lets a module be copied and pickled; its numbers stay as they are."""
    for child in module.modules():
        if isinstance(child, torch.jit.ScriptModule):
            continue
        if parametrize.is_parametrized(child):
            _allow_pickle(type(child))
        # Of the old weight_norm and spectral_norm, of pruning, or of a forward that keeps what it has computed: PyTorch
        # copies no tensor with a gradient's history.
        for tensors in (vars(child), child._buffers):
            for name, value in tensors.items():
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    tensors[name] = value.detach()


def _allow_pickle(kind: Any) -> None:
    kind.__reduce_ex__ = _reduce


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    (base,) = type(module).__bases__
    return _made, (base, list(module.parametrizations)), dict(vars(module))


def _made(base: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Make a parametrized module, of this class before, without its state; `names`: of the tensors that are."""
    module: nn.Module = base.__new__(base)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    _allow_pickle(type(module))
    return module
