"""``load_model``: a saved model whose optimizer averages over the ranks again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_estimator.keras.compression import Compression
from spark_estimator.keras.importing import backend, keras
from spark_estimator.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model that was saved with a `DistributedOptimizer` or without, and wraps its optimizer.

    The optimizer's state is that of the file. Every rank loads; give them the same file.

    Args:
        filepath: of a ``.keras`` file, or what else ``keras.saving.load_model`` takes.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: name to class or function, for all else that it does not know.
        compression: as for `DistributedOptimizer`, whose other arguments have their defaults.
        legacy_opts: without effect: Keras 3 has one kind of optimizer.

    Returns:
        The model; without an optimizer where the file holds none.

    Raises:
        NotInitializedError: ``hvd.init()`` has not been called.
    """
    classes = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.saving.load_model(filepath, custom_objects={**classes, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
        if backend() == "tensorflow":  # which has chosen by itself, when the file was read
            model.jit_compile = False
    return model
