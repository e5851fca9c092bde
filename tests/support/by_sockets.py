"""Ranks of one machine that take each other for ranks of other hosts, since they share no memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_estimator.collectives import context

_VARIABLE = "SPARK_ESTIMATOR_SHARED_MEMORY"


@contextlib.contextmanager
def by_sockets() -> Iterator[None]:
    """In it the job is another one, of the same ranks, that is connected by sockets alone. All ranks enter it."""
    context.shutdown()
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "0"
    try:
        context.init(process_sets="dynamic")
    finally:
        del os.environ[_VARIABLE]
        if before is not None:
            os.environ[_VARIABLE] = before
    yield
    context.shutdown()
    context.init(process_sets="dynamic")
