"""Lightning 1's ``training_epoch_end``, ``validation_epoch_end`` and ``test_epoch_end`` in the Trainers of Lightning 2.

Lightning 2 refuses a module that has one of them. `EpochOutputs` hides them while it looks, and calls them with what
the steps of the epoch returned on this rank, before the hooks ``on_*_epoch_end``, as Lightning 1 did.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection

#: Hooks of Lightning 1 that get the outputs of the epoch's steps.
EPOCH_ENDS = ("training_epoch_end", "validation_epoch_end", "test_epoch_end")


def list_epoch_end_hooks(module: Any) -> list[str]:
    """Return those of `EPOCH_ENDS` that a LightningModule has."""
    return [name for name in EPOCH_ENDS if callable(getattr(module, name, None))]


@contextmanager
def hide_epoch_ends(module: Any) -> Iterator[None]:
    """Hide the module's `EPOCH_ENDS`, within it, from a Trainer of Lightning 2, which would refuse it."""
    outputs = EpochOutputs(module)
    outputs.hide()
    try:
        yield
    finally:
        outputs.show()


class EpochOutputs:
    """Collects what a module's steps return, and hands it to the module's `EPOCH_ENDS`.

    It holds no outputs for a hook that the module does not have.

    Args:
        module: the LightningModule of a run.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._hooks = {name: getattr(module, name) for name in list_epoch_end_hooks(module)}
        self._outputs: dict[str, dict[int, list[Any]]] = {name: {} for name in self._hooks}
        self._replaced: dict[str, Any] = {}
        self._attached: tuple[Any, Any] | None = None

    def attach(self, trainer: Any, flavour: str) -> None:
        """Give the module its hooks back, and has the Trainer of a `flavour` call them until `release`."""
        self.show()
        if self._hooks:
            self._attached = trainer, self._make_callback(flavour)
            trainer.callbacks.insert(0, self._attached[1])

    def release(self) -> None:
        """Leaves module and Trainer as they were; a second call changes nothing."""
        self.show()
        if self._attached is not None:
            trainer, callback = self._attached
            trainer.callbacks.remove(callback)
            self._attached = None

    def hide(self) -> None:
        """Replace the module's hooks by None, which no Trainer takes for a hook, until `show`."""
        for name in self._hooks:
            # Of the instance: other modules of the class may be trained elsewhere at the same time.
            self._replaced[name] = self._module.__dict__.get(name, self)
            self._module.__dict__[name] = None

    def show(self) -> None:
        """Give the module its hooks back; a second call changes nothing."""
        while self._replaced:
            name, value = self._replaced.popitem()
            del self._module.__dict__[name]
            if value is not self:
                self._module.__dict__[name] = value

    def _make_callback(self, flavour: str) -> Any:
        package: Any = importlib.import_module(flavour)
        outputs = self

        class CallEpochEnds(package.Callback):
            def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
                outputs.begin("training_epoch_end", 1)

            def on_train_batch_end(self, trainer: Any, pl_module: Any, output: Any, batch: Any, batch_idx: int) -> None:
                outputs.add("training_epoch_end", output or None, 0)

            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                outputs.end("training_epoch_end")

            def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
                batches = trainer.num_sanity_val_batches if trainer.sanity_checking else trainer.num_val_batches
                outputs.begin("validation_epoch_end", len(batches))

            def on_validation_batch_end(
                self, trainer: Any, pl_module: Any, output: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
            ) -> None:
                outputs.add("validation_epoch_end", output, dataloader_idx)

            def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                outputs.end("validation_epoch_end")

            def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
                outputs.begin("test_epoch_end", len(trainer.num_test_batches))

            def on_test_batch_end(
                self, trainer: Any, pl_module: Any, output: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
            ) -> None:
                outputs.add("test_epoch_end", output, dataloader_idx)

            def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                outputs.end("test_epoch_end")

        return CallEpochEnds()

    def begin(self, hook: str, loaders: int) -> None:
        """Discards the outputs for a hook; the next ones are of `loaders` loaders."""
        if hook in self._hooks:
            self._outputs[hook] = {number: [] for number in range(loaders)}

    def add(self, hook: str, output: Any, loader: int) -> None:
        """Keep what a step returned for a batch of a loader, without its graph; None is left out."""
        if hook in self._hooks and output is not None:
            detached = apply_to_collection(output, torch.Tensor, torch.Tensor.detach)
            self._outputs[hook].setdefault(loader, []).append(detached)

    def end(self, hook: str) -> None:
        """Call a hook: with a list of outputs, or with a list of such lists where there are several loaders.

        As in Lightning 1, ``training_epoch_end`` is left out where no step returned anything.
        """
        if hook not in self._hooks:
            return
        lists, self._outputs[hook] = list(self._outputs[hook].values()), {}
        if hook != "training_epoch_end" or any(lists):
            self._hooks[hook](lists[0] if len(lists) == 1 else lists)
