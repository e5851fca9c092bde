"""Leads from a stand-in package to spark_estimator; its presence also marks this folder as one of stand-ins.

The folder lies inside the package, so the package is found from here when the interpreter does not know it otherwise.
"""

import importlib.util
import os
import sys


def serve(root: str) -> None:
    """Puts the right module in the place of the stand-in `root`."""
    try:
        from spark_estimator.compat.importer import stand_in
    except ModuleNotFoundError as absent:
        if absent.name != "spark_estimator":
            raise
        # Only the package itself is taken from there: what lies beside it may belong to another environment.
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            "spark_estimator", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["spark_estimator"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["spark_estimator"])
        from spark_estimator.compat.importer import stand_in
    stand_in(root)
