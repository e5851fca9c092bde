"""Gives scripts written for TensorFlow 1 its names, graphs and lack of eager execution at ``import tensorflow as tf``.

TensorFlow 2 contains TensorFlow 1's API as ``tensorflow.compat.v1``. While this is installed, ``tensorflow`` has
those names in the program's own files. In the files of installed packages, including TensorFlow and Keras, it stays
TensorFlow 2, because some names differ in meaning between the two (``tf.Variable``, ``tf.summary.scalar``).

With Keras 2 (``TF_USE_LEGACY_KERAS=1``), ``tf.keras`` and ``tensorflow.keras`` are those of TensorFlow 1, too, with
``keras.backend.set_session`` and optimizers for graphs. Keras 3 does not have these names.

Modules that TensorFlow has removed raise an error that names the replacement. Of ``tf.estimator`` only ``ModeKeys`` is
available, and ``tf.layers`` needs Keras 2.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

_NAME = "tensorflow"

# Names that stay TensorFlow 2's, because the import system and TensorFlow itself use them.
_UNCHANGED = frozenset({"compat", "python", "core", "keras"})

_CONTRIB = (
    "TensorFlow removed tf.contrib in 2.0: use the parts that moved to TensorFlow itself, such as tf.layers, tf.data "
    "and tf.metrics"
)
_ESTIMATOR = (
    "TensorFlow removed tf.estimator in 2.16, and only ModeKeys is available: call the model function yourself and run "
    "the ops that it returns in a tf.train.MonitoredTrainingSession, or train a Keras model"
)


class _Estimator(ModuleType):
    """``tf.estimator`` for a TensorFlow without it: only the names that model functions use."""

    class ModeKeys:
        """The mode that a model function is called in."""

        TRAIN = "train"
        EVAL = "eval"
        PREDICT = "infer"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}: {_ESTIMATOR}.")


class _Layers(ModuleType):
    """``tf.layers``, with an error that names the required Keras."""

    def __init__(self, real: Any, version: str) -> None:
        super().__init__("tensorflow.layers")
        self._real = real
        self._version = ".".join(version.split(".")[:2])

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._real, name)
        except AttributeError as error:
            if "Keras 3" not in str(error):
                raise
            raise AttributeError(
                f"tf.layers.{name} needs Keras 2: pip install 'tf_keras=={self._version}.*', and set "
                "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
            ) from None


class _Finder:
    """The first finder in ``sys.meta_path`` until TensorFlow has been imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == f"{_NAME}.contrib":
            raise ModuleNotFoundError(f"No module named {name!r}: {_CONTRIB}.")
        if name != _NAME:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # duck-typed
                return spec
        return None


class _Loader:
    """Loads TensorFlow, then switches it to TensorFlow 1's API."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        _switch_to_v1(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_finder = _Finder()
_classes: dict[int, type] = {}  # id of a switched module -> its original class
_paths: dict[int, list[str]] = {}  # id of a switched module -> its original __path__


def install() -> None:
    """Switches TensorFlow to TensorFlow 1's API, now or at its import. A second call changes nothing."""
    module = sys.modules.get(_NAME)
    if module is not None:
        _switch_to_v1(module)
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Reverts `install`. Also enables eager execution again, unless a graph has been built."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    module = sys.modules.get(_NAME)
    if module is None or id(module) not in _classes:
        return
    module.__class__ = _classes.pop(id(module))
    if module.__path__ != _paths[id(module)]:
        _forget_keras()
    module.__path__[:] = _paths.pop(id(module))
    v1 = module.compat.v1
    v1.reset_default_graph()
    v1.enable_v2_behavior()


def _switch_to_v1(module: ModuleType) -> None:
    if id(module) in _classes:
        return
    v1 = module.compat.v1
    v1.disable_v2_behavior()
    base = type(module)
    _paths[id(module)] = list(module.__path__)
    module.__path__[:] = [_choose_keras_v1(folder) for folder in module.__path__]
    has_old_keras = module.__path__ != _paths[id(module)]
    if has_old_keras:
        _forget_keras()
    estimator = _Estimator(f"{_NAME}.estimator")
    layers = _Layers(v1.layers, module.__version__)

    def lookup(self: ModuleType, name: str) -> Any:
        if name == "keras" and has_old_keras and _is_the_programs(sys._getframe(1)):
            return v1.keras
        if name.startswith("_") or name in _UNCHANGED or not _is_the_programs(sys._getframe(1)):
            return base.__getattribute__(self, name)
        if name == "layers":
            return layers
        try:
            return getattr(v1, name)
        except AttributeError:
            return base.__getattribute__(self, name)

    def find_missing(self: ModuleType, name: str) -> Any:
        # TensorFlow 2's own lookup of lazily loaded names comes first, if it has one.
        late = getattr(base, "__getattr__", base.__getattribute__)
        try:
            return late(self, name)
        except AttributeError as error:
            if name not in ("contrib", "estimator") or not _is_the_programs(sys._getframe(1)):
                raise
            if name == "contrib":
                raise AttributeError(f"{error}: {_CONTRIB}.") from None
            return estimator

    methods: dict[str, Any] = {"__getattribute__": lookup, "__getattr__": find_missing}
    _classes[id(module)] = base
    module.__class__ = type(base.__name__, (base,), methods)


def _choose_keras_v1(folder: str) -> str:
    """Return a folder of ``tensorflow.__path__``, that of Keras 2 replaced by its names for TensorFlow 1."""
    parent, name = os.path.split(folder)
    is_keras_2 = name == "_v2" and os.path.basename(os.path.dirname(parent)) == "tf_keras"
    return os.path.join(parent, "_v1") if is_keras_2 else folder


def _forget_keras() -> None:
    """Has the next import of ``tensorflow.keras`` load it from where it is now."""
    for name in [name for name in sys.modules if name == f"{_NAME}.keras" or name.startswith(f"{_NAME}.keras.")]:
        del sys.modules[name]


_libraries = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in ("stdlib", "purelib", "platlib")
)
_package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def _is_the_programs(frame: FrameType) -> bool:
    """Return whether a frame runs the user's code: not the standard library's, an installed or this package's."""
    file = frame.f_code.co_filename
    if file.startswith("<frozen"):
        return False
    path = os.path.realpath(file)
    return not path.startswith((*_libraries, _package)) and "site-packages" not in path
