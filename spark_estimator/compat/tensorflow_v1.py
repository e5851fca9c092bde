"""Lets scripts of TensorFlow 1's time say ``import tensorflow as tf``: its names, its graphs, no eager execution.

TensorFlow 2 still has them all, as ``tensorflow.compat.v1``. While this is installed, the files of the program itself
find that behind ``tensorflow``; those of installed packages, TensorFlow's and Keras' own among them, find TensorFlow 2
as ever, because the same name means different things in the two (``tf.Variable``, ``tf.summary.scalar``).

What TensorFlow has removed since stays away, and says so: of ``tf.estimator`` only ``ModeKeys`` is served, and
``tf.layers`` needs Keras 2.
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

# What the import system itself, and whoever looks at modules, must find unchanged.
_OWN = frozenset({"compat", "python", "core", "keras"})

_CONTRIB = (
    "TensorFlow removed tf.contrib in 2.0: use what TensorFlow itself has of it, such as tf.layers, tf.data and "
    "tf.metrics"
)
_ESTIMATOR = (
    "TensorFlow removed tf.estimator in 2.16, and ModeKeys alone is served: call the model function yourself and run "
    "what it returns in a tf.train.MonitoredTrainingSession, or train a Keras model"
)


class _Estimator(ModuleType):
    """What there is of ``tf.estimator`` where TensorFlow has none: the names that model functions ask for."""

    class ModeKeys:
        """What a model function is called for."""

        TRAIN = "train"
        EVAL = "eval"
        PREDICT = "infer"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}: {_ESTIMATOR}.")


class _Layers(ModuleType):
    """``tf.layers``, which says what it needs where it cannot be used."""

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
                f"tf.layers.{name} works with Keras 2 alone: pip install 'tf_keras=={self._version}.*', and set "
                "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
            ) from None


class _Finder:
    """Stands before all other finders until TensorFlow has been imported."""

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
                spec.loader = _Loader(spec.loader)  # type: ignore[assignment]  # by its methods
                return spec
        return None


class _Loader:
    """Loads TensorFlow as ever, then turns it."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        _turn(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_finder = _Finder()
_classes: dict[int, type] = {}  # of the modules that were turned, as they were


def install() -> None:
    """Turns TensorFlow when it is imported; at once if it has been. A second call changes nothing."""
    module = sys.modules.get(_NAME)
    if module is not None:
        _turn(module)
    elif _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Takes back `install`. Eager execution comes back, too, unless a graph has been built by then."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    module = sys.modules.get(_NAME)
    if module is None or id(module) not in _classes:
        return
    module.__class__ = _classes.pop(id(module))
    v1 = module.compat.v1
    v1.reset_default_graph()
    v1.enable_v2_behavior()


def _turn(module: ModuleType) -> None:
    if id(module) in _classes:
        return
    v1 = module.compat.v1
    v1.disable_v2_behavior()
    base = type(module)
    estimator = _Estimator(f"{_NAME}.estimator")
    layers = _Layers(v1.layers, module.__version__)

    def lookup(self: ModuleType, name: str) -> Any:
        if name.startswith("_") or name in _OWN or not _is_the_programs(sys._getframe(1)):
            return base.__getattribute__(self, name)
        if name == "layers":
            return layers
        try:
            return getattr(v1, name)
        except AttributeError:
            return base.__getattribute__(self, name)

    def missing(self: ModuleType, name: str) -> Any:
        # TensorFlow 2's own way to find what is loaded late comes first, where it has one.
        late = getattr(base, "__getattr__", base.__getattribute__)
        try:
            return late(self, name)
        except AttributeError as error:
            if name not in ("contrib", "estimator") or not _is_the_programs(sys._getframe(1)):
                raise
            if name == "contrib":
                raise AttributeError(f"{error}: {_CONTRIB}.") from None
            return estimator

    methods: dict[str, Any] = {"__getattribute__": lookup, "__getattr__": missing}
    _classes[id(module)] = base
    module.__class__ = type(base.__name__, (base,), methods)


_libraries = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in ("stdlib", "purelib", "platlib")
)
_package = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def _is_the_programs(frame: FrameType) -> bool:
    """Whether the code that asks is the user's: not of an installed package, nor of this one."""
    file = frame.f_code.co_filename
    if file.startswith("<frozen"):
        return False
    path = os.path.realpath(file)
    return not path.startswith((*_libraries, _package)) and "site-packages" not in path
