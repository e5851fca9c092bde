"""A copy of the weights of a module and of its callbacks, from before hooks that may change or swap them."""

from __future__ import annotations

from typing import Any

import torch


class WeightsCopy:
    """The values that parameters and buffers have now, in host memory.

    A callback that averages weights swaps them with the module's for a validation: if a rank is lost in it, the
    validation is repeated, and must begin with the weights of training.

    Args:
        trainer: whose module, and whose callbacks' modules.
    """

    def __init__(self, trainer: Any) -> None:
        tensors = [tensor for module in modules_of(trainer) for tensor in (*module.parameters(), *module.buffers())]
        self._copies = {id(tensor): (tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors}

    def restore(self) -> None:
        """Gives the same parameters and buffers these values."""
        with torch.no_grad():
            for tensor, value in self._copies.values():
                tensor.copy_(value)


def modules_of(trainer: Any) -> list[torch.nn.Module]:
    """The module of a Trainer, and those that its callbacks have in attributes, such as averages of it."""
    module = trainer.lightning_module
    held = [value for callback in trainer.callbacks for value in vars(callback).values()]
    return [module, *(each for each in held if isinstance(each, torch.nn.Module) and each is not module)]
