"""What the estimators of all frameworks share: checks before a training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pytest

from spark_estimator import DataError, TorchEstimator
from spark_estimator.store import Store
from tests.estimators.conftest import linear
from tests.estimators.torch_models import model_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def test_the_frame_has_sparks_name_or_horovods(estimator: Make, line: DataFrame) -> None:
    made = estimator()
    for call in (made.fit, model_of(linear()).transform):
        with pytest.raises(TypeError, match=r"\(\) takes one DataFrame, as dataset or as df; got both"):
            call(line, df=line)
        with pytest.raises(TypeError, match=r"\(\) takes a Spark DataFrame.*got None"):
            call()
    # Each name reaches the check of columns, before a rank starts.
    wrong = {made.feature_cols: ["missing"]}
    for frame in ({"dataset": line}, {"df": line}):
        with pytest.raises(DataError, match="missing"):
            made.fit(**frame, params=wrong)
    predicted = model_of(linear()).transform(df=line, params={})
    assert predicted.columns == [*line.columns, "y__output"]


@dataclass(frozen=True)
class Failing:
    """Makes rows in Spark's tasks, and raises a DataError after some."""

    error: type[Exception] = DataError
    rows: int = 0

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for _ in range(0, self.rows, 1000):
            yield pyarrow.RecordBatch.from_pydict({"features": [[1.0, 2.0, 3.0]] * 1000, "y": [1.0] * 1000})
        if self.error is DataError:
            raise DataError("column 'text' holds a null.\nLeave it out.")
        raise self.error("another error")

    def frame(self, spark: SparkSession) -> DataFrame:
        def called(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            return self(batches)

        return spark.range(0, 1, 1, 1).mapInArrow(called, "features array<double>, y double")


def test_a_data_error_of_a_task_is_raised_as_itself(estimator: Make, spark: SparkSession) -> None:
    with pytest.raises(DataError, match=r"^column 'text' holds a null\.\nLeave it out\.\nmore: \S+.*DATA$") as raised:
        estimator().fit(Failing().frame(spark))
    assert "PythonException" in type(raised.value.__cause__).__name__
    with pytest.raises(Exception, match="another error") as other:
        estimator().fit(Failing(KeyError).frame(spark))
    assert not isinstance(other.value, DataError)


@pytest.mark.slow
@pytest.mark.parametrize("num_proc", [1, 2])
@pytest.mark.parametrize("materialize", [False, True])
def test_also_while_ranks_wait_for_its_rows(
    estimator: Make, spark: SparkSession, tmp_path: Path, num_proc: int, materialize: bool
) -> None:
    store = Store.create(str(tmp_path)) if materialize else None
    made = estimator(num_proc=num_proc, store=store, materialize=materialize, validation=None)
    with pytest.raises(DataError, match=r"^column 'text' holds a null\.\nLeave it out\."):
        made.fit(Failing(rows=60_000).frame(spark))


def test_a_loaded_estimator_has_its_uid_and_no_store(estimator: Make, tmp_path: Path) -> None:
    made = estimator(store=Store.create(str(tmp_path / "store")), epochs=9)
    with pytest.warns(UserWarning, match="store is not saved, because it is specific to this environment"):
        made.save(str(tmp_path / "estimator"))
    loaded = TorchEstimator.load(str(tmp_path / "estimator"))
    assert (loaded.uid, loaded.getEpochs(), loaded.getStore()) == (made.uid, 9, None)
