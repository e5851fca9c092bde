"""A saved estimator's folder, for all frameworks: objects that cannot be pickled are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_estimator import DataError, TorchEstimator

Make = Callable[..., TorchEstimator]


def test_what_cannot_be_saved_is_named(estimator: Make, tmp_path: Path) -> None:
    file = (tmp_path / "open").open("w")
    with pytest.raises(DataError, match="metrics cannot be saved: PicklingError"), file:
        estimator(metrics=[lambda output, label: file]).save(str(tmp_path / "estimator"))
    assert not (tmp_path / "estimator").exists()
