"""Functions that are called when a module has been imported."""

from __future__ import annotations

from tests.compat.interpreter import fresh


def test_a_function_is_called_once_at_the_end_of_the_import() -> None:
    printed = fresh(
        """
        import sys
        from spark_estimator.compat.awaited_imports import is_imported, call_when_imported
        def act(name):
            print(name, hasattr(sys.modules[name], "fnmatch"), is_imported(name))
        sys.modules.pop("fnmatch", None)
        call_when_imported("fnmatch", act)
        print(is_imported("fnmatch"))
        import fnmatch, fnmatch
        call_when_imported("fnmatch", act)
        """
    )
    assert printed.splitlines() == ["False", "fnmatch True False", "fnmatch True True"]
