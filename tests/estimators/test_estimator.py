"""What the estimators of all frameworks share: checks before a training starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_estimator import DataError, TorchEstimator
from spark_estimator.store import Store

Make = Callable[..., TorchEstimator]


def test_files_need_a_store(estimator: Make) -> None:
    with pytest.raises(ValueError, match=r"fit_on_parquet\(\)"):
        estimator().fit_on_parquet()


def test_a_store_without_data(estimator: Make, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        estimator(store=Store.create(str(tmp_path))).fit_on_parquet()


def test_parameters_of_one_training_leave_the_estimator_as_it_is(estimator: Make, tmp_path: Path) -> None:
    made = estimator()
    with pytest.raises(DataError, match=str(tmp_path)):
        made.fit_on_parquet({made.store: Store.create(str(tmp_path))})
    assert made.getStore() is None


def test_a_loaded_estimator_has_its_uid_and_no_store(estimator: Make, tmp_path: Path) -> None:
    made = estimator(store=Store.create(str(tmp_path / "store")), epochs=9)
    with pytest.warns(UserWarning, match="store is not saved, because it is specific to this environment"):
        made.save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    assert (loaded.uid, loaded.getEpochs(), loaded.getStore()) == (made.uid, 9, None)
