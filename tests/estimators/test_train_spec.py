"""The values that the driver sends to the ranks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from spark_estimator.data.fields import Field
from spark_estimator.data.parquet import FileRows
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.estimators.train_spec import TrainResult, TrainSpec
from spark_estimator.store import Store
from tests.estimators.specs import X, Y, spec_of

WEIGHT = Field(("w",), ("c2",), (1,), "float32")


def test_fields_are_in_the_order_of_the_spool() -> None:
    assert spec_of().fields == (X, Y)
    assert spec_of(weight=WEIGHT).fields == (X, Y, WEIGHT)


def test_the_checkpoint_is_in_the_run_s_folder(tmp_path: Path) -> None:
    assert spec_of().checkpoint_path is None
    assert spec_of(store=Store.create(str(tmp_path))).checkpoint_path == str(tmp_path / "runs" / "run" / "checkpoint")


def test_parameters_of_an_estimator(tmp_path: Path) -> None:
    rest = ("train_steps_per_epoch", "validation_steps_per_epoch", "early_stopping_patience", "checkpoint_every_steps")
    parameters: dict[str, Any] = {
        **{name: number for number, name in enumerate((*rest, "checkpoint_every_seconds", "epochs", "verbose"))},
        "batch_size": 20,
        "val_batch_size": None,
        "cache_bytes": 21,
        "buffer_bytes": None,
        "random_seed": None,
        "shuffle": True,
        "backward_passes_per_step": 22,
        "use_gpu": False,
        "restore_best": True,
        "monitor": "validation.auc",
        "mode": "max",
        "store": None,
        "resume_on_other_rows": True,
    }
    rows = dict.fromkeys(("weight", "source", "held_source", "framework"))
    others: dict[str, Any] = {**rows, "inputs": (X,), "labels": (Y,), "held_share": 0.5, "run_id": "run", "large": 1}
    spec = TrainSpec.from_parameters(parameters.__getitem__, **others)
    assert (spec.train_steps, spec.validation_steps, spec.patience, spec.checkpoint_steps) == (0, 1, 2, 3)
    assert (spec.checkpoint_seconds, spec.epochs, spec.verbose) == (4, 5, 6)
    assert (spec.batch_size, spec.val_batch_size, spec.backward_passes_per_step) == (20, 20, 22)
    assert spec.limits == RowLimits.from_parameters(21, None)
    assert (spec.monitor, spec.mode) == ("validation.auc", "max")
    assert (spec.shuffle, spec.use_gpu, spec.restore_best, spec.resume_on_other_rows) == (True, False, True, True)
    assert 0 <= spec.seed < 1 << 31 and not spec.has_given_seed and not spec.repeatable

    parameters |= {"random_seed": 0, "val_batch_size": 23}
    spec = TrainSpec.from_parameters(parameters.__getitem__, **others)
    assert (spec.seed, spec.has_given_seed, spec.repeatable, spec.val_batch_size) == (0, True, True, 23)

    parameters |= {"random_seed": None, "store": Store.create(str(tmp_path))}
    spec = TrainSpec.from_parameters(parameters.__getitem__, **others)
    assert spec.store is parameters["store"] and spec.repeatable and not spec.has_given_seed


def test_ranks_order_the_rows_that_spark_sends() -> None:
    files = FileRows((), RowEncoder(("x",)))  # type: ignore[arg-type]
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
