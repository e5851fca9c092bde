"""The plan of a training's rows, of Parquet files that the ranks read."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchEstimator
from spark_estimator.data.parquet import find_files
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_plan import plan_files
from spark_estimator.estimators.torch.check import TorchTrial
from spark_estimator.estimators.torch.parts import make_parts
from spark_estimator.estimators.train_spec import TrainSpec


def test_a_plan_has_columns_tensors_and_source(tmp_path: Path) -> None:
    table = pyarrow.table({"a": [1.0, 2.0], "b": [3, 4], "y": [0.5, 1.5]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    pyarrow.parquet.write_table(table.drop_columns(["b"]), tmp_path / "other.parquet")
    net = nn.Linear(2, 1)
    estimator = TorchEstimator(
        model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=nn.MSELoss(), label_cols=["y"]
    )
    trial = TorchTrial(make_parts(estimator._value)[0])
    files = find_files(str(tmp_path / "rows.parquet"))
    plan = plan_files(files, None, RowRequest.from_parameters(estimator._value, None), trial)
    (field,) = plan.fields.inputs
    assert (field.names, field.shape, field.dtype) == (("a", "b"), (2,), "float32"), "they are side by side"
    assert [column.name for column in plan.columns.fed] == ["a", "b", "y"]
    assert plan.fields.outputs == (1,) and plan.source.rows is None
    assert plan.source.source is not None
    spool, _ = plan.source.source.read(0, 1)
    assert spool.matrices[0].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    spec = TrainSpec.from_parameters(estimator._value, run_id="run", large=1, framework=None, **plan.to_spec_fields())
    assert (spec.fields, spec.source, spec.held_source) == (plan.fields.all, plan.source.source, None)
    assert (spec.batch_size, spec.kept, spec.categories, spec.transform_validation) == (32, None, (), True)
    with pytest.raises(DataError, match="no column 'b'"):
        plan_files(
            find_files(str(tmp_path / "other.parquet")),
            None,
            RowRequest.from_parameters(estimator.setFeatureCols(["a", "b"])._value, None),
            trial,
        )
