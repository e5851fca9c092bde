"""Horovod's module of errors."""

from __future__ import annotations

from spark_estimator import errors
from spark_estimator.compat import exceptions


def test_errors_are_this_packages_and_horovods() -> None:
    for name in ("HorovodInternalError", "HostsUpdatedInterrupt", "WorkerFailedError"):
        assert getattr(exceptions, name) is getattr(errors, name)
    assert issubclass(exceptions.HorovodVersionMismatchError, ImportError)
