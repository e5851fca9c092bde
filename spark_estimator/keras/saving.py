"""``load_model``: a saved model whose optimizer averages over the ranks again."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_estimator.keras.compression import Compression
from spark_estimator.keras.importing import backend, is_keras_2, keras, uses_keras_2
from spark_estimator.keras.optimizer import DistributedOptimizer
from spark_estimator.keras.wrapping import find_exchange


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model that was saved with a `DistributedOptimizer` or without, and wraps its optimizer.

    It may be called before ``hvd.init()``, which a step of the optimizer needs. The optimizer's state is that of the
    file. Every rank loads; give them the same file. The process's Keras loads it; Keras 2 does, too, where a program
    has imported ``tf_keras`` and the file has a version of Keras 2. Only for files whose writer you trust: Keras' safe
    mode refuses some code only, and Keras 2 imports any module that a file names.

    Args:
        filepath: of a ``.keras`` or ``.h5`` file, or any other argument of Keras' ``load_model``.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: name to class or function, for all other names that it does not know.
        compression: as for `DistributedOptimizer`, whose other arguments have their defaults.
        legacy_opts: without effect: the file names its optimizer's class.

    Returns:
        The model; without an optimizer where the file holds none.
    """
    classes = {kind.__name__: kind for kind in custom_optimizers or ()}
    loader = keras
    if not uses_keras_2() and "tf_keras" in sys.modules and _read_version(filepath).startswith("2."):
        loader = sys.modules["tf_keras"]
    model = loader.models.load_model(filepath, custom_objects={**classes, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and find_exchange(optimizer) is None:
        DistributedOptimizer(optimizer, compression=compression)
        if backend(model) == "tensorflow" and not is_keras_2(model):  # which has chosen on its own, when it was read
            model.jit_compile = False
    return model


def _read_version(filepath: Any) -> str:
    """Return the version of the Keras that has written a file, as the file has it; '' without one."""
    try:
        path = Path(filepath)
        if path.is_dir():
            return "2." if (path / "saved_model.pb").exists() else ""
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return str(json.loads(archive.read("metadata.json"))["keras_version"])
        import h5py

        with h5py.File(path) as file:
            version = file.attrs.get("keras_version", "")
            return version.decode() if isinstance(version, bytes) else str(version)
    except (TypeError, OSError, KeyError, ValueError, ImportError):
        return ""
