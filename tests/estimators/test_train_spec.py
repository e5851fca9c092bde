"""The values that the driver sends to the ranks."""

from __future__ import annotations

import pickle
from pathlib import Path

from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.preparation import Preparation
from spark_estimator.estimators.train_spec import TrainResult
from spark_estimator.store import Store
from tests.estimators.specs import X, Y, spec_of

WEIGHT = Field(("w",), ("c2",), (1,), "float32")


def test_fields_are_in_the_order_of_the_spool() -> None:
    assert spec_of().fields == (X, Y)
    assert spec_of(weight=WEIGHT).fields == (X, Y, WEIGHT)


def test_the_checkpoint_is_in_the_run_s_folder(tmp_path: Path) -> None:
    assert spec_of().checkpoint_path is None
    assert spec_of(store=Store.create(str(tmp_path))).checkpoint_path == str(tmp_path / "runs" / "run" / "checkpoint")


def test_ranks_order_the_rows_that_spark_sends() -> None:
    files = FileRows((), Preparation(("x",)))  # type: ignore[arg-type]
    assert not spec_of().by_value
    assert spec_of(repeatable=True).by_value
    assert not spec_of(repeatable=True, source=files).by_value, "files are read in the same order each time"


def test_rows_of_functions_are_not_stored() -> None:
    """To read them again calls the user's code."""
    assert spec_of().has_stored_rows
    assert not spec_of(kept=object()).has_stored_rows


def test_states_are_left_out_of_texts_and_travel() -> None:
    result = TrainResult(b"secret" * 99, [{"epoch": 0}], (3, 1))
    assert "secret" not in repr(result)
    assert pickle.loads(pickle.dumps(result)) == result
    assert pickle.loads(pickle.dumps(spec_of(seed=9))) == spec_of(seed=9)
