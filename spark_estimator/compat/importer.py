"""Finds the modules that the table of aliases knows, at the moment when somebody imports one of them.

Nothing is loaded before that, and every other import costs one look into a set of two names. The finder stands first
in ``sys.meta_path``: the modules behind the aliases have a ``__path__``, and the ordinary finder would load their
files a second time under the old names.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from spark_estimator.compat import tensorflow_v1 as old_tensorflow
from spark_estimator.compat.aliases import HOROVOD_VERSION, MODULES, PACKAGES, ROOTS, advice

#: Marks the packages that stand in, so that they are never taken for the real ones.
_MARK = "__spark_estimator_alias__"
#: Marks the folder of stand-ins itself, so that copies of this package in one process know one another's.
_SHIM_FILE = "_spark_estimator_shim.py"
#: By name: it stands on a higher layer, and few will ask for it.
_OLD_SPELLINGS = "spark_estimator.lightning.old_spellings"


class AliasLoader:
    """Puts in place what an old name leads to."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return StandIn(spec.name) if spec.name in PACKAGES else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        if old in MODULES:
            # The import system takes what stands in sys.modules at the end, so the old name gets the module itself.
            sys.modules[old] = importlib.import_module(MODULES[old])


class StandIn(ModuleType):
    """A package of the old tree that has no code of its own: ``horovod``, ``horovod.common``, ``sparkdl``, ..."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"Stands in for {name}: the names below lead to spark_estimator.")
        self.__dict__["__path__"] = []
        self.__dict__["__package__"] = name
        self.__dict__["__spec__"] = ModuleSpec(name, AliasLoader(), is_package=True)  # type: ignore[arg-type]
        self.__dict__[_MARK] = True
        if name == "horovod":
            self.__dict__["__version__"] = HOROVOD_VERSION

    def __getattr__(self, name: str) -> object:
        """Loads a served name at its first use.

        Submodules too: a pickled function that says ``horovod.torch.rank()`` brings the package along, but nothing
        that would import the submodule where it arrives.
        """
        old = f"{self.__name__}.{name}"
        if old in MODULES or old in PACKAGES:
            return importlib.import_module(old)
        target = PACKAGES[self.__name__].get(name)
        if target is None:
            text = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(text if name.startswith("__") else f"{text}: {advice(old)}")
        module, _, attribute = target.partition(":")
        value: object = getattr(importlib.import_module(module), attribute)
        self.__dict__[name] = value
        return value

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        prefix = self.__name__ + "."
        below = {old.removeprefix(prefix) for old in (*MODULES, *PACKAGES) if old.startswith(prefix)}
        return sorted({*self.__dict__, *PACKAGES[self.__name__], *(name for name in below if "." not in name)})


class AliasFinder:
    """The entry in ``sys.meta_path``. With `force` it also stands before a real Horovod or sparkdl."""

    def __init__(self, force: bool) -> None:
        self.force = force

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, below = name.partition(".")
        if root not in ROOTS:
            return None
        if below:
            if not hasattr(sys.modules.get(root), _MARK):
                return None
        elif not self.force and real_package(root) is not None:
            return None
        if name not in MODULES and name not in PACKAGES:
            # Without `name=`, or `from horovod import tensorflow` would drop this text for one that helps nobody.
            raise ModuleNotFoundError(f"No module named {name!r}: {advice(name)}")
        return ModuleSpec(name, AliasLoader(), is_package=name in PACKAGES)  # type: ignore[arg-type]  # by its methods


def install(*, force: bool = False, lightning: bool = False, tensorflow_v1: bool = False) -> None:
    """Makes the old names importable in this process; a second call changes nothing.

    Args:
        force: serve the old names even where a real Horovod or sparkdl is installed. Without it, those are left alone.
        lightning: have Lightning's Trainers take ``accelerator="horovod"``, ``distributed_backend="horovod"`` and
            ``gpus=`` as those of Lightning 1 did, and what they called e.g. ``checkpoint_callback``, with a
            DeprecationWarning.
        tensorflow_v1: have ``import tensorflow as tf`` give TensorFlow 1's names and behaviour, for scripts of its
            time; see `tensorflow_v1`. Call it before anything has been computed with TensorFlow.

    Raises:
        RuntimeError: `force` is set, but a real one has been imported already: two libraries would share one name.
        ModuleNotFoundError: `lightning` is set, and there is no Lightning.
    """
    if lightning:
        importlib.import_module(_OLD_SPELLINGS).install()
    if force:
        for root in sorted(ROOTS):
            module = sys.modules.get(root)
            if module is not None and not hasattr(module, _MARK):
                raise RuntimeError(
                    f"{root} has been imported from {getattr(module, '__file__', None)} already: call "
                    "spark_estimator.compat.install(force=True) before the first import of it."
                )
    if tensorflow_v1:
        old_tensorflow.install()
    for finder in sys.meta_path:
        if isinstance(finder, AliasFinder):
            finder.force = finder.force or force
            return
    sys.meta_path.insert(0, AliasFinder(force))


def uninstall() -> None:
    """Takes back `install()`: the old names cannot be imported any more; what was imported stays usable."""
    if _OLD_SPELLINGS in sys.modules:
        sys.modules[_OLD_SPELLINGS].uninstall()
    old_tensorflow.uninstall()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for root in ROOTS:
        if hasattr(sys.modules.get(root), _MARK):
            for name in [name for name in sys.modules if name == root or name.startswith(root + ".")]:
                del sys.modules[name]


def stand_in(root: str) -> None:
    """What a package in ``shims/`` does when it is imported: makes way for a real one, else for the alias.

    Args:
        root: "horovod" or "sparkdl". ``sys.modules[root]`` holds the shim now and the right module afterwards.
    """
    spec = _real_spec(root)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # here, because it is not cheap and seldom needed

        module = module_from_spec(spec)
        sys.modules[root] = module
        spec.loader.exec_module(module)
        return
    install()
    sys.modules[root] = StandIn(root)


def real_package(root: str) -> str | None:
    """The file of a real Horovod or sparkdl in this environment, None when there is none; imports nothing."""
    spec = _real_spec(root)
    return spec.origin if spec is not None else None


def real_horovod_present() -> bool:
    """Whether a real Horovod can be imported here, so that the aliases keep out of its way."""
    return real_package("horovod") is not None


def shims_path() -> str:
    """The folder to put on PYTHONPATH so that a command's own ``import horovod.torch`` is served."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims")


def _real_spec(root: str) -> ModuleSpec | None:
    path = [entry for entry in sys.path if not os.path.exists(os.path.join(entry or os.curdir, _SHIM_FILE))]
    for finder in sys.meta_path:
        if isinstance(finder, AliasFinder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(root, path if finder is PathFinder else None)
        # No origin: a mere folder of that name, for example the one that a clone of Horovod's repository lies in.
        if spec is not None and spec.origin is not None:
            return spec
    return None
