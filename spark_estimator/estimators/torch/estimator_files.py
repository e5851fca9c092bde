"""A saved estimator of PyTorch modules: plain parameters as JSON; modules, losses and functions in one other file.

``objects.pt`` is read by PyTorch's restricted unpickler, which makes objects of known classes only: modules, losses,
optimizers and schedulers of PyTorch's own, tensors, and the losses of torch.nn.functional. Functions and classes of the
user's own need trust.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle
import torch
from torch import nn

from spark_estimator.errors import DataError
from spark_estimator.estimators.params import TableParams
from spark_estimator.estimators.persistence import estimator_files
from spark_estimator.estimators.persistence.folders import is_trusted
from spark_estimator.estimators.persistence.horovod_files import HorovodFile
from spark_estimator.estimators.persistence.manifest import Manifest
from spark_estimator.estimators.persistence.remote_folders import open_folder
from spark_estimator.estimators.torch.reading import RefusedObjectsError, load_module, read
from spark_estimator.torch.sending import prepare_to_send

if TYPE_CHECKING:
    from typing_extensions import Self


class TorchFiles:
    """Base of estimators that store their model, optimizer and other objects in ``objects.pt``.

    Attributes:
        _objects: the parameters that JSON does not hold. One file has them all, as the optimizer and its scheduler hold
            the model's own parameters.
    """

    _objects: ClassVar[tuple[str, ...]]

    def _write_files(self, folder: Path) -> None:
        assert isinstance(self, TableParams)
        model = self.getOrDefault("model")
        if isinstance(model, nn.Module):
            prepare_to_send(model)
        estimator_files.write(self, folder, self._objects, _dump)

    @classmethod
    def load(cls, path: str, *, trust: bool = False) -> Self:
        """Load what `save` has written, and run no code from it unless it is trusted.

        Args:
            path: as for Spark ML: without a scheme it is on the session's default file system. With trust, the folder
                may be one that Horovod has saved.
            trust: runs code from the folder, which your own modules need; only for folders that you trust.

        Raises:
            DataError: the folder is missing, damaged or of another version, or loading its objects would run code
                from it.
        """
        result: Any = cls
        with open_folder(path) as folder:
            saved = HorovodFile.read(folder)
            if saved is not None:
                return cls._from_horovod(saved, trust=trust)
            loaded: Self = estimator_files.load(
                result, folder, cls._objects, lambda manifest: _read(manifest, trust), trust=trust
            )
        return loaded

    @classmethod
    def _from_horovod(cls, saved: HorovodFile, *, trust: bool) -> Self:
        """Return an estimator that Horovod has saved."""
        kind: Any = cls
        values = saved.load_values("TorchEstimator", trust=trust)
        if "model" in values:
            values["model"] = load_module(values["model"])
        names = {row.name for row in kind._rows}
        estimator: Any = kind(**{name: value for name, value in values.items() if name in names})
        estimator._set(**{name: value for name, value in values.items() if name in kind._ineffective})
        estimator._resetUid(saved.uid)
        loaded: Self = estimator
        return loaded


def _dump(objects: dict[str, Any], folder: Path) -> None:
    # cloudpickle, so that functions and classes of a notebook are in the file itself.
    torch.save(objects, folder / "objects.pt", pickle_module=cloudpickle)


def _read(manifest: Manifest, trust: bool) -> Any:
    try:
        return read(manifest.check_file("objects.pt"), _list_known(), trust=is_trusted(trust))
    except RefusedObjectsError as error:
        raise DataError(
            f"{manifest.folder}: its model, losses, metrics or functions aren't PyTorch's own, and loading them "
            f"could run any code. Pass trust=True (in a pipeline: use trust_files()) if you trust the folder. ({error})"
        ) from error


def _list_known() -> list[Any]:
    """Return classes whose objects only hold values from the file, and functions that only compute."""

    def find_classes(module: Any, base: type) -> list[type]:
        return [item for _, item in inspect.getmembers(module, inspect.isclass) if issubclass(item, base)]

    schedulers = torch.optim.lr_scheduler
    functions = [value for name, value in vars(nn.functional).items() if name.endswith(("loss", "cross_entropy"))]
    return [
        *find_classes(nn, nn.Module),
        *find_classes(torch.optim, torch.optim.Optimizer),
        *find_classes(schedulers, schedulers.LRScheduler),
        *(candidate for candidate in functions if getattr(candidate, "__module__", "") == "torch.nn.functional"),
        defaultdict,
        dict,
        set,
    ]
