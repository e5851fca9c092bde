"""The import hook of the aliases: imports this package's modules under Horovod's, sparkdl's and petastorm's names.

A module is loaded when a program imports its alias. Any other import costs one lookup in a set of four names. The
finder is the first in ``sys.meta_path``: the modules behind the aliases have a ``__path__``, and the ordinary finder
would load their files a second time under the old names.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from spark_estimator.compat import tensorflow_v1 as old_tensorflow
from spark_estimator.compat.aliases import MODULES, PACKAGES, ROOTS, VERSIONS, advise
from spark_estimator.compat.unavailable import UNAVAILABLE, make_placeholder

#: Attribute that marks alias packages, to distinguish them from the real ones.
_MARK = "__spark_estimator_alias__"
#: File that marks a folder of shims, so that several copies of this package in a process recognize each other's.
_SHIM_FILE = "_spark_estimator_shim.py"
#: Imported by name: the module is in a higher layer, and few programs need it.
_OLD_SPELLINGS = "spark_estimator.lightning.old_spellings"
_FLAVOURS = "spark_estimator.lightning.flavours"
#: A worker's environment has it where the driver has called `install` with ``lightning=True``.
LIGHTNING_VARIABLE = "_SPARK_ESTIMATOR_COMPAT_LIGHTNING"


class AliasLoader:
    """Loads the module behind an alias."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return AliasPackage(spec.name) if spec.name in PACKAGES else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        if old in MODULES:
            # The import system returns the entry of sys.modules, so the alias is the module itself.
            sys.modules[old] = importlib.import_module(MODULES[old])
        elif old == "horovod.spark.lightning":
            _restore_lightning_names()
        elif old == "lightning_horovod":
            _name_its_strategy()


class AliasPackage(ModuleType):
    """A package without a counterpart here: ``horovod``, ``horovod.common``, ``sparkdl``, ``petastorm``, ..."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"Aliases for {name}: the names of this package are those of spark_estimator.")
        self.__dict__["__path__"] = []
        self.__dict__["__package__"] = name
        self.__dict__["__spec__"] = ModuleSpec(name, AliasLoader(), is_package=True)  # type: ignore[arg-type]
        self.__dict__[_MARK] = True
        if name in VERSIONS:
            self.__dict__["__version__"] = VERSIONS[name]

    def __getattr__(self, name: str) -> object:
        """Load an alias at its first use.

        Also submodules: a pickled function that calls ``horovod.torch.rank()`` refers to the package ``horovod`` only,
        so its receiver would not import the submodule.
        """
        old = f"{self.__name__}.{name}"
        if old in MODULES or old in PACKAGES:
            return importlib.import_module(old)
        target = PACKAGES[self.__name__].get(name)
        sentence = UNAVAILABLE.get(self.__name__, {}).get(name)
        if sentence is not None:
            self.__dict__[name] = make_placeholder(old, sentence)
            return self.__dict__[name]
        if target is None:
            text = f"module {self.__name__!r} has no attribute {name!r}"
            raise AttributeError(text if name.startswith("__") else f"{text}: {advise(old)}")
        module, _, attribute = target.partition(":")
        value: object = getattr(importlib.import_module(module), attribute)
        self.__dict__[name] = value
        return value

    def __reduce__(self) -> tuple[object, ...]:
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        prefix = self.__name__ + "."
        below = {old.removeprefix(prefix) for old in (*MODULES, *PACKAGES) if old.startswith(prefix)}
        names = {*PACKAGES[self.__name__], *UNAVAILABLE.get(self.__name__, {})}
        return sorted({*self.__dict__, *names, *(name for name in below if "." not in name)})


class AliasFinder:
    """The entry in ``sys.meta_path``. With `force` it takes precedence over the installed packages of these names."""

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
        elif not self.force and find_real_package(root) is not None:
            return None
        if name not in MODULES and name not in PACKAGES:
            # Without `name=`: with it, `from horovod import tensorflow` would replace this message by a generic one.
            raise ModuleNotFoundError(f"No module named {name!r}: {advise(name)}")
        return ModuleSpec(name, AliasLoader(), is_package=name in PACKAGES)  # type: ignore[arg-type]  # duck-typed


def install(*, force: bool = False, lightning: bool = False, tensorflow_v1: bool = False) -> None:
    """Make the old names importable in this process; a second call changes nothing.

    Args:
        force: use the aliases even if the real Horovod, sparkdl or petastorm is installed. By default the real one is
            imported.
        lightning: Lightning's Trainers accept Lightning 1's arguments (``accelerator="horovod"``,
            ``distributed_backend="horovod"``, ``gpus=``, ``checkpoint_callback=``, ...), with a DeprecationWarning.
        tensorflow_v1: ``import tensorflow as tf`` gives TensorFlow 1's names and behaviour, for scripts written for
            it; see `tensorflow_v1`. Call this before the first computation with TensorFlow.

    Raises:
        RuntimeError: `force` is set, but a real one of them has already been imported.
        ModuleNotFoundError: `lightning` is set, and Lightning is not installed.
    """
    if lightning:
        importlib.import_module(_OLD_SPELLINGS).install()
    if force:
        for root in sorted(ROOTS):
            module = sys.modules.get(root)
            if module is not None and not hasattr(module, _MARK):
                raise RuntimeError(
                    f"{root} has already been imported from {getattr(module, '__file__', None)}: call "
                    f"spark_estimator.compat.install(force=True) before the first import of {root}."
                )
    if tensorflow_v1:
        old_tensorflow.install()
    for finder in sys.meta_path:
        if isinstance(finder, AliasFinder):
            finder.force = finder.force or force
            return
    sys.meta_path.insert(0, AliasFinder(force))


def _restore_lightning_names() -> None:
    """Restore names that clients of ``horovod.spark.lightning``, written for Lightning 1, expect."""
    try:
        importlib.import_module(_OLD_SPELLINGS).restore_names()
    except ModuleNotFoundError:
        pass  # without Lightning: the estimator names what is missing


def _name_its_strategy() -> None:
    """Name the strategy as programs that import ``lightning_horovod`` expect ``Trainer(strategy="horovod")`` to."""
    try:
        importlib.import_module(_FLAVOURS).name_class("AddOnStrategy")
    except ModuleNotFoundError:
        pass  # without Lightning: the strategy names what is missing


def make_worker_variables() -> dict[str, str]:
    """Return the variables by which workers of this process's jobs know its switches; see `install_as_driver`."""
    old_spellings = sys.modules.get(_OLD_SPELLINGS)
    return {LIGHTNING_VARIABLE: "1"} if old_spellings is not None and old_spellings.is_installed() else {}


def install_as_driver() -> None:
    """Call `install` in a worker, with ``lightning`` if the driver has it and this host has Lightning."""
    install()
    if os.environ.get(LIGHTNING_VARIABLE):
        with suppress(ModuleNotFoundError):
            install(lightning=True)


def is_installed() -> bool:
    """Return whether this process has the aliases by `install`."""
    return any(isinstance(finder, AliasFinder) for finder in sys.meta_path)


def uninstall() -> None:
    """Reverts `install()`: the aliases can't be imported any more. Objects that were imported stay usable."""
    if _OLD_SPELLINGS in sys.modules:
        sys.modules[_OLD_SPELLINGS].uninstall()
    if _FLAVOURS in sys.modules:
        sys.modules[_FLAVOURS].name_class("HorovodStrategy")
    old_tensorflow.uninstall()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for root in ROOTS:
        if hasattr(sys.modules.get(root), _MARK):
            for name in [name for name in sys.modules if name == root or name.startswith(root + ".")]:
                del sys.modules[name]


def replace_shim(root: str) -> None:
    """Replace a package of ``shims/`` (``horovod``) that is being imported by the real one, or the alias."""
    spec = _find_real_spec(root)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # imported here: it takes time and is seldom needed

        module = module_from_spec(spec)
        sys.modules[root] = module
        spec.loader.exec_module(module)
        return
    install()
    sys.modules[root] = AliasPackage(root)


def find_real_package(root: str) -> str | None:
    """Return the file of a real package (Horovod, ...); None if it is not installed. Imports nothing."""
    spec = _find_real_spec(root)
    return spec.origin if spec is not None else None


def real_horovod_present() -> bool:
    """Return whether the real Horovod is installed; it then takes precedence over the aliases."""
    return find_real_package("horovod") is not None


def shims_path() -> str:
    """Return the folder to add to PYTHONPATH, so that a command can ``import horovod.torch``."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "shims")


def find_autoload_path() -> str:
    """Return the folder to add to PYTHONPATH, so that torch and JAX find the job when they are imported."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "extensions", "autoload")


def _find_real_spec(root: str) -> ModuleSpec | None:
    path = [entry for entry in sys.path if not os.path.exists(os.path.join(entry or os.curdir, _SHIM_FILE))]
    for finder in sys.meta_path:
        if isinstance(finder, AliasFinder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(root, path if finder is PathFinder else None)
        # No origin: a folder of that name without a package, for example around a clone of Horovod's repository.
        if spec is not None and spec.origin is not None:
            return spec
    return None
