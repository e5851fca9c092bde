"""Arguments without effect get a warning with the reason; deprecated names still work."""

from __future__ import annotations

import sys
import warnings

import pytest

from spark_estimator.launch.cli.obsolete import REASONS, explain, resolve_renamed


def test_arguments_that_were_set_get_a_warning_each() -> None:
    with pytest.warns(UserWarning) as caught:
        explain({"use_mpi": True, "use_gloo": False, "nics": None, "slots": 0})
    assert [str(warning.message) for warning in caught] == [
        f"use_mpi=True has no effect: {REASONS['use_mpi']}.",
        f"slots=0 has no effect: {REASONS['slots']}.",
    ]


def test_the_present_python_is_no_setting() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explain({"executable": sys.executable})
    with pytest.warns(UserWarning, match="executable='/other/python' has no effect: ranks run in the Python of"):
        explain({"executable": "/other/python"})


def test_a_deprecated_name_counts_where_the_new_one_was_not_set() -> None:
    with pytest.warns(DeprecationWarning, match="np is deprecated: use num_proc=3"):
        assert resolve_renamed("np", 3, "num_proc", 1, default=1) == 3
    with pytest.raises(ValueError, match="np=3 is the deprecated name of num_proc=2, and differs: leave it out"):
        resolve_renamed("np", 3, "num_proc", 2, default=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_renamed("np", None, "num_proc", 2) == 2
