"""A `TorchEstimator` in a folder: what is plain as JSON; model, optimizer, losses and functions in one file of PyTorch.

``objects.pt`` is read by PyTorch's restricted unpickler, which makes objects of known classes only: modules, losses,
optimizers and schedulers of PyTorch's own, tensors, and the losses of torch.nn.functional. Functions and classes of the
user's own need trust.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.estimators import estimator_files
from spark_estimator.estimators.folders import is_trusted
from spark_estimator.estimators.told import Told
from spark_estimator.estimators.torch_reading import RefusedObjectsError, read

if TYPE_CHECKING:
    from spark_estimator.estimators.torch_estimator import TorchEstimator

#: What JSON does not hold. One file for all, as the optimizer and its scheduler hold the model's own parameters.
_OBJECTS = (
    *("model", "optimizer", "loss", "loss_constructors", "metrics", "lr_scheduler", "gradient_compression"),
    *("callbacks", "train_minibatch_fn", "decoders", "transformation_fn"),
)


def write(estimator: TorchEstimator, folder: Path) -> None:
    """Puts an estimator's files into a new folder.

    Raises:
        DataError: a parameter cannot be pickled.
    """
    estimator_files.write(estimator, folder, _OBJECTS, dump)


def load(path: str, *, trust: bool) -> TorchEstimator:
    """See `TorchEstimator.load`."""
    from spark_estimator.estimators.torch_estimator import TorchEstimator

    return estimator_files.load(TorchEstimator, path, _OBJECTS, lambda told: read_objects(told, trust))


def dump(objects: dict[str, Any], folder: Path) -> None:
    """Writes an estimator's objects, by their parameters' names, into one file."""
    # cloudpickle, so that functions and classes of a notebook are in the file itself.
    torch.save(objects, folder / "objects.pt", pickle_module=cloudpickle)


def read_objects(told: Told, trust: bool) -> Any:
    """What `dump` has written.

    Raises:
        DataError: it needs trust, or is damaged.
    """
    try:
        return read(told.file("objects.pt"), _known(), trust=is_trusted(trust))
    except RefusedObjectsError as error:
        raise DataError(
            f"{told.folder}: its model, losses or functions are other than PyTorch's own, and to read them could run "
            "any code that the file names. Say trust=True (in a pipeline: with trust_files()) if you know where the "
            f"folder comes from. ({error})"
        ) from error


def _known() -> list[Any]:
    """Classes whose objects only hold what the file says of them, and functions that only compute."""

    def classes(module: Any, base: type) -> list[type]:
        return [one for _, one in inspect.getmembers(module, inspect.isclass) if issubclass(one, base)]

    schedulers = torch.optim.lr_scheduler
    functions = [one for name, one in vars(nn.functional).items() if name.endswith(("loss", "cross_entropy"))]
    return [
        *classes(nn, nn.Module),
        *classes(torch.optim, torch.optim.Optimizer),
        *classes(schedulers, schedulers.LRScheduler),
        *(one for one in functions if getattr(one, "__module__", "") == "torch.nn.functional"),
        defaultdict,
        dict,
        set,
    ]
