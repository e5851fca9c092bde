"""Replaces a shim package by the real package or by spark_estimator's aliases; this file also marks a folder of shims.

The folder is inside spark_estimator, so the package is loaded by its path if it isn't on ``sys.path``.
"""

import importlib.util
import os
import sys


def serve(root: str) -> None:
    """Replace the shim `root` by the right module."""
    try:
        from spark_estimator.compat.importer import replace_shim
    except ModuleNotFoundError as absent:
        if absent.name != "spark_estimator":
            raise
        # Only the package itself is loaded by path: the packages beside it may belong to another environment.
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            "spark_estimator", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["spark_estimator"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["spark_estimator"])
        from spark_estimator.compat.importer import replace_shim
    replace_shim(root)
