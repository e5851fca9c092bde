"""A `TorchModel` in a folder: JSON, the numbers, and the architecture; read without running code from it.

``metadata/part-00000`` is what Spark ML looks for, so that a saved Pipeline finds its stage; ``spark_estimator.json``
the rest in plain text; ``weights.pt`` the numbers, for ``torch.load(..., weights_only=True)``; ``module.pt`` the
architecture. That of modules of torch.nn is read by PyTorch's restricted unpickler, which makes objects of known
classes only. Other classes need either a module to fill, or trust.
"""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pyspark.ml.util import MLReader, MLWriter
from torch import nn

from spark_estimator import __version__
from spark_estimator.data.fields import Field
from spark_estimator.errors import DataError
from spark_estimator.store import DBFSLocalStore

if TYPE_CHECKING:
    from spark_estimator.estimators.torch_model import TorchModel

_FORMAT = 1
_OTHER_SCHEMES = ("hdfs:", "s3:", "s3a:", "gs:", "abfss:", "wasbs:", "viewfs:")


class Writer(MLWriter):
    """``model.write().overwrite().save(path)``."""

    def __init__(self, model: TorchModel) -> None:
        super().__init__()
        self._model = model

    def save(self, path: str) -> None:
        """Writes the folder: all of it, or nothing.

        Raises:
            FileExistsError: it is there already, and overwrite() was not said.
        """
        folder = local_path(path)
        if folder.exists() and not self.shouldOverwrite:
            raise FileExistsError(f"{folder} is there already: say write().overwrite().save(...) to replace it.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f".{folder.name}.{time.time_ns()}")
        try:
            _write(self._model, partial)
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


class Reader(MLReader["TorchModel"]):
    """``TorchModel.read().load(path)``."""

    def load(self, path: str) -> TorchModel:
        """As `TorchModel.load`."""
        return load(path, None, trust=False)


def load(path: str, module: nn.Module | None, *, trust: bool) -> TorchModel:
    """See `TorchModel.load`."""
    from spark_estimator.estimators.torch_model import TorchModel

    folder = local_path(path)
    try:
        told = json.loads((folder / "spark_estimator.json").read_text(encoding="utf-8"))
        weights = torch.load(folder / "weights.pt", weights_only=True)
    except FileNotFoundError as error:
        raise DataError(f"{folder} holds no TorchModel: there is no {Path(error.filename).name}.") from error
    if told["format"] > _FORMAT:
        raise DataError(
            f"{folder} was written by spark_estimator {told['version']}, a later version than {__version__}."
        )
    filled = _architecture(folder, trust) if module is None else copy.deepcopy(module)
    filled.load_state_dict(weights, assign=module is None)
    model = TorchModel(
        model=filled.eval(),
        inputs=[
            Field(tuple(f["names"]), tuple(f["columns"]), tuple(f["widths"]), f["dtype"], tuple(f["shape"]))
            for f in told["inputs"]
        ],
        outputs=told["outputs"],
        label_types=told["label_types"],
        thresholds=told["thresholds"],
        **told["params"],
    )
    model._resetUid(told["uid"])
    return model


def local_path(path: str) -> Path:
    """A folder of this machine's file system, Databricks' ``dbfs:/`` and ``file:`` included.

    Raises:
        DataError: it is elsewhere.
    """
    text = str(path)
    if text.startswith(_OTHER_SCHEMES):
        raise DataError(
            f"{text}: models are saved to folders that the driver sees (a local or mounted path, /Volumes, dbfs:/). "
            "Save it there and copy the folder."
        )
    if DBFSLocalStore.matches(text):
        return Path(DBFSLocalStore.normalize_path(text))
    if text.startswith("file:"):
        return Path("/" + text[len("file:") :].lstrip("/"))
    return Path(text)


def _write(model: TorchModel, folder: Path) -> None:
    (folder / "metadata").mkdir(parents=True)
    chosen = {row.name: model.getOrDefault(row.name) for row in model._rows}
    told = {
        "format": _FORMAT,
        "version": __version__,
        "uid": model.uid,
        "params": chosen,
        "inputs": [asdict(field) for field in model._inputs],
        "outputs": list(model._outputs),
        "label_types": list(model._label_types),
        "thresholds": list(model._thresholds),
    }
    (folder / "spark_estimator.json").write_text(json.dumps(told, indent=2), encoding="utf-8")
    trained = copy.deepcopy(model.getModel()).cpu()
    torch.save(trained.state_dict(), folder / "weights.pt")
    try:
        torch.save(_without_numbers(trained), folder / "module.pt")
    except Exception as error:
        # The numbers are there: it can be loaded into a module.
        (folder / "module.missing").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    kind = type(model)
    spark_metadata: dict[str, Any] = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "timestamp": int(time.time() * 1000),
        "sparkVersion": _spark_version(),
        "uid": model.uid,
        "paramMap": {},
        "defaultParamMap": {},
    }
    (folder / "metadata" / "part-00000").write_text(json.dumps(spark_metadata) + "\n", encoding="utf-8")
    (folder / "metadata" / "_SUCCESS").touch()


def _without_numbers(module: nn.Module) -> nn.Module:
    """The module, changed in place: all that ``weights.pt`` has is left out; buffers that are not in it are kept."""
    kept = [
        (name, buffer, part._buffers[buffer])
        for name, part in module.named_modules()
        for buffer in part._non_persistent_buffers_set
    ]
    bare = module.to("meta")
    for name, buffer, value in kept:
        bare.get_submodule(name)._buffers[buffer] = value
    return bare


def _spark_version() -> str:
    import pyspark

    return str(pyspark.__version__)


def _architecture(folder: Path, trust: bool) -> nn.Module:
    file = folder / "module.pt"
    if not file.exists():
        why = (folder / "module.missing").read_text(encoding="utf-8") if (folder / "module.missing").exists() else ""
        raise DataError(f"{folder} holds no architecture ({why}): say model=... with a module of the same one.")
    if trust:
        loaded = torch.load(file, weights_only=False)
    else:
        known = [one for _, one in inspect.getmembers(nn, inspect.isclass) if issubclass(one, nn.Module)]
        try:
            with torch.serialization.safe_globals([*known, set]):
                loaded = torch.load(file, weights_only=True)
        except pickle.UnpicklingError as error:
            raise DataError(
                f"{folder}: its architecture is made of classes other than torch.nn's own, and to read it could run "
                "any code that the file names. Say model=YourModule(...), which gets its numbers, or trust=True "
                f"if you know where the file comes from. ({str(error).splitlines()[0]})"
            ) from error
    assert isinstance(loaded, nn.Module)
    return loaded
