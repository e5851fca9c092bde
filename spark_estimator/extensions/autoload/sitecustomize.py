"""What Python imports at its start in workers, and in what they start: JAX, if it is imported, then finds the job.

Python imports one module of this name. The one that it would find without this folder runs as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

_PACKAGE = "spark_estimator"
_CLUSTERS = "jax._src.clusters"


class JaxWatcher:
    """An import hook that finds no module itself: it acts as the import of JAX begins, once."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return None, for any module."""
        if name == "jax":
            sys.meta_path.remove(self)
            if importlib.util.find_spec(_PACKAGE) is not None:
                awaited = importlib.import_module(f"{_PACKAGE}.compat.awaited_imports")
                awaited.call_when_imported(_CLUSTERS, register_cluster)
        return None


def register_cluster(_: str) -> None:
    """Add the job to the kinds of cluster that JAX looks for."""
    importlib.import_module(f"{_PACKAGE}.extensions.jax.cluster")


def run_next() -> None:
    """Run the ``sitecustomize`` of the environment, if it has one."""
    own_folder = os.path.dirname(os.path.realpath(__file__))
    spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if os.path.realpath(entry) != own_folder])
    if spec is not None and spec.loader is not None and spec.origin is not None:
        module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, JaxWatcher())
    run_next()
