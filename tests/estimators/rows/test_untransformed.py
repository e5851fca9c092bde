"""``transform_validation=False``: rows for validation reach the model without transformation_fn, from any source."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.collectives import context
from spark_estimator.data.parquet import DataFiles, find_files
from spark_estimator.data.stream.limits import RowLimits
from spark_estimator.estimators.rank_run import begin
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_plan import plan_files
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.checkpoint import TorchForm
from spark_estimator.estimators.torch.parts import make_parts
from spark_estimator.store import Store
from tests.estimators.specs import spec_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, SHIFT = 200, 1000.0
LIMITS = RowLimits(cache_bytes=0, buffer_bytes=400)


def shifted_frame(frame: Any) -> Any:
    return frame.assign(x=frame.x + SHIFT)


def shifted_row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": row["x"] + SHIFT}


@pytest.fixture
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def table(first: int = 0, rows: int = ROWS) -> pyarrow.Table:
    numbers = numpy.arange(first, first + rows)
    return pyarrow.table({"x": numbers.astype(float), "y": numbers / rows, "held": (numbers % 4 == 0).astype(int)})


def files(folder: Path, of: pyarrow.Table, name: str = "rows") -> DataFiles:
    pyarrow.parquet.write_table(of, folder / f"{name}.parquet", row_group_size=30)
    return find_files(str(folder / f"{name}.parquet"))


def estimator(**changed: Any) -> TorchEstimator:
    net = nn.Linear(1, 1)
    parameters = {"model": net, "optimizer": torch.optim.SGD(net.parameters(), 0.0), "loss": nn.MSELoss()}
    columns = {"feature_cols": ["x"], "label_cols": ["y"], "transform_validation": False}
    return TorchEstimator(**{**parameters, **columns, **changed})


def values_of(made: TorchEstimator, train: DataFiles, held: DataFiles | None = None, **spec: Any) -> tuple[Any, Any]:
    """The sorted values of x that a rank trains on, and validates on."""
    trial = TorchTrial(make_parts(made._value)[0])
    validation = made._value("validation") if held is None else None
    plan = plan_files(
        train, held, RowRequest.from_parameters(made._value, validation, separate=held is not None), trial
    )
    run = begin(
        spec_of(
            inputs=plan.fields.inputs,
            labels=plan.fields.labels,
            source=plan.source.source,
            held_source=plan.source.held_source,
            kept=plan.columns.kept,
            held_share=plan.held_share,
            transform_validation=plan.columns.encoder.transforms_marked,
            **spec,
        ),
        lambda spec, checksums: {},
        TorchForm(),
    )
    assert run.held is not None
    return tuple(
        numpy.sort(numpy.concatenate([batch.matrices[0][: batch.rows, 0] for batch in rows.read_batches(16)]))
        for rows in (run.rows, run.held)
    )


@pytest.mark.parametrize("limits", [None, LIMITS], ids=["kept", "streamed"])
@pytest.mark.parametrize("function", [shifted_frame, shifted_row])
def test_from_every_source(
    function: Callable[[Any], Any], limits: RowLimits | None, alone: None, tmp_path: Path
) -> None:
    every = files(tmp_path, table())
    numbers = numpy.arange(ROWS)

    train, held = values_of(estimator(transformation_fn=function, validation="held"), every, limits=limits)
    numpy.testing.assert_array_equal(held, numbers[numbers % 4 == 0])
    numpy.testing.assert_array_equal(train, numbers[numbers % 4 != 0] + SHIFT)

    train, held = values_of(estimator(transformation_fn=function, validation=0.25), every, limits=limits)
    assert len(held) == 50 or (function is shifted_frame and 30 < len(held) < 70)
    numpy.testing.assert_array_equal(numpy.sort([*held, *(train - SHIFT)]), numbers)

    others = files(tmp_path, table(ROWS, 40), "others")
    train, held = values_of(estimator(transformation_fn=function, validation=0.25), every, others, limits=limits)
    numpy.testing.assert_array_equal(held, numpy.arange(ROWS, ROWS + 40))
    numpy.testing.assert_array_equal(train, numbers + SHIFT)

    as_horovod = estimator(transformation_fn=function, validation="held", transform_validation=True)
    train, held = values_of(as_horovod, every, limits=limits)
    numpy.testing.assert_array_equal(held, numbers[numbers % 4 == 0] + SHIFT)


def two_values(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "x": numpy.array([row["x"], 0.0])}


def created(row: dict[str, Any]) -> dict[str, Any]:
    return {"z": row["x"], "y": row["y"]}


CREATED: dict[str, Any] = {
    "transformation_fn": created,
    "feature_cols": ["z"],
    "transformation_edit_fields": [("z", "float32", (), False)],
    "transformation_removed_fields": ["x"],
}


def turned(frame: Any) -> Any:
    return frame.assign(image=[image.transpose(2, 0, 1).copy() for image in frame.image])


def pixels(content: bytes) -> Any:
    return numpy.frombuffer(content, numpy.uint8).reshape(2, 2, 3)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            CREATED,
            "have no column 'z', which transformation_fn creates. Prepare the columns before fit",
        ),
        (
            {"transformation_fn": two_values, "model": nn.Linear(2, 1)},
            "don't fit the model without transformation_fn: ",
        ),
        (
            {
                "transformation_fn": turned,
                "feature_cols": ["image"],
                "decoders": {"image": pixels},
                "model": nn.Sequential(nn.Flatten(), nn.Linear(12, 1)),
            },
            r"column 'image' is decoded as \[2, 2, 3\], and transformation_fn returns \[3, 2, 2\]",
        ),
        ({"transformation_fn": shifted_frame, "validation": "other"}, "other"),
    ],
)
def test_columns_that_need_the_function_are_refused(
    changed: dict[str, Any], words: str, alone: None, tmp_path: Path
) -> None:
    content = table().append_column("image", pyarrow.array([bytes(range(12))] * ROWS))
    net = changed.get("model", nn.Linear(1, 1))
    made = estimator(
        **{"validation": 0.25, "optimizer": torch.optim.SGD(net.parameters(), 0.1), "model": net, **changed}
    )
    with pytest.raises(DataError, match=words):
        values_of(made, files(tmp_path, content))


def test_without_validation_it_has_no_effect(tmp_path: Path) -> None:
    made = estimator(**CREATED)
    plan = plan_files(
        files(tmp_path, table()),
        None,
        RowRequest.from_parameters(made._value, None),
        TorchTrial(make_parts(made._value)[0]),
    )
    assert plan.columns.encoder.transforms_marked


def output(values: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return values.mean()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("function", "validation"), [(shifted_frame, 0.25), (shifted_row, "held")])
def test_through_spark_s_tasks(
    function: Callable[[Any], Any], validation: float | str, spark: SparkSession, tmp_path: Path
) -> None:
    net = nn.Linear(1, 1)
    nn.init.ones_(net.weight)
    frame = spark.createDataFrame(table().to_pylist())
    made = estimator(
        num_proc=2,
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), 0.0),
        transformation_fn=function,
        validation=validation,
        metrics={"output": output},
        verbose=0,
    )
    (entry,) = made.fit(frame).getHistory()
    assert entry["train"]["metrics"]["output"] > SHIFT > ROWS > entry["validation"]["metrics"]["output"] > 0
    (entry,) = copy.copy(made).setTransformValidation(True).fit(frame).getHistory()
    assert entry["validation"]["metrics"]["output"] > SHIFT


@pytest.mark.timeout(240)
def test_files_of_validation_in_a_store(spark: SparkSession, tmp_path: Path) -> None:
    store = Store.create(str(tmp_path))
    spark.createDataFrame(table().to_pylist()).write.parquet(store.get_train_data_path())
    spark.createDataFrame(table(ROWS, 40).to_pylist()).write.parquet(store.get_val_data_path())
    net = nn.Linear(1, 1)
    nn.init.ones_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    parameters = {"store": store, "validation": 0.1, "metrics": {"output": output}, "verbose": 0, "num_proc": 2}
    (entry,) = (
        estimator(model=net, optimizer=optimizer, transformation_fn=shifted_row, **parameters)
        .fit_on_parquet()
        .getHistory()
    )
    assert entry["train"]["metrics"]["output"] > SHIFT > entry["validation"]["metrics"]["output"] > ROWS - 1
