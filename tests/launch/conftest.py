"""Fixtures that several files of this folder use."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import pytest


@pytest.fixture(scope="module")
def functions_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test module's functions travel whole, as those of a notebook do.

    Those of a user's own modules travel by reference, as the workers can import them; the test run's import mode
    forbids that.
    """
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
