"""A copy of the weights of a module and of its callbacks, from before hooks that may change or swap them."""

from __future__ import annotations

from typing import Any

import torch

#: Averages of weights may begin in the second step, when there are two.
_WATCHED_STEPS = 3


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


class OtherWeights:
    """Finds in the first steps whether a training changes parameters that no optimizer has before the optimizer's step.

    Attributes:
        have_moved: it does.

    Args:
        trainer: whose hooks at the begin of an epoch have run.
    """

    def __init__(self, trainer: Any) -> None:
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        learned = {id(parameter) for group in groups for parameter in group["params"]}
        module = trainer.lightning_module
        self._tensors = [parameter for parameter in module.parameters() if id(parameter) not in learned]
        self._left = _WATCHED_STEPS
        self.have_moved = False
        self._keep()

    def step_begins(self) -> None:
        """Right before the optimizer's step."""
        pairs = zip(self._tensors, self._copies, strict=False)
        self.have_moved |= not all(torch.equal(tensor.detach(), copy) for tensor, copy in pairs)

    def step_is_over(self) -> None:
        """What hooks have changed after the step is not undone by a loss."""
        self._left -= 1
        self._keep()

    def _keep(self) -> None:
        self._copies = [tensor.detach().clone() for tensor in self._tensors] if self._left > 0 else []


def modules_of(trainer: Any) -> list[torch.nn.Module]:
    """The module of a Trainer, and those that its callbacks have in attributes, such as averages of it."""
    module = trainer.lightning_module
    held = [value for callback in trainer.callbacks for value in vars(callback).values()]
    return [module, *(each for each in held if isinstance(each, torch.nn.Module) and each is not module)]
