"""The plan of a training's rows: built once on the driver, and only read by everything after it.

It is built in this order; each step uses only the steps before it:

1. `RowRequest`: what the parameters ask for. No data is read.
2. `RowSample`: the columns, their types, the first rows, the lengths of arrays and their fill values. A DataFrame takes
   one small Spark job, or two.
3. `Fields`: each tensor's type and shape. The model is tried on the first rows, on the driver.
4. The vocabularies of categories: the most frequent values of all rows, by one query. Means and medians that replace
   nulls, by one query.
5. `RowSource`: files that the ranks read, or Spark's tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_estimator.data.parquet import DataFiles
from spark_estimator.estimators.rows.null_values import measure_files, measure_frame
from spark_estimator.estimators.rows.request import RowRequest
from spark_estimator.estimators.rows.row_source import RowSource, make_files_source
from spark_estimator.estimators.rows.sampling import Columns, sample_files, sample_frame
from spark_estimator.estimators.rows.shapes import Fields, Trial, find_fields
from spark_estimator.estimators.rows.untransformed import check_untransformed
from spark_estimator.estimators.rows.vocabularies import count_files, count_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class RowPlan:
    """What the driver knows about a training's rows before it starts.

    Attributes:
        columns: which columns there are, by role, and what is done to their values where they are read.
        fields: the tensors of a batch: type, shape, values per row and fill value of each; and the model's outputs.
        source: of the ranks' rows.
        held_share: of the rows, which ranks take for validation when they have read all of their rows.
    """

    columns: Columns
    fields: Fields
    source: RowSource
    held_share: float = 0.0

    def to_spec_fields(self) -> dict[str, Any]:
        """Return the fields of a `TrainSpec` that describe the rows."""
        return {
            "inputs": self.fields.inputs,
            "labels": self.fields.labels,
            "weight": self.fields.weight,
            "held_share": self.held_share,
            "source": self.source.source,
            "held_source": self.source.held_source,
            "kept": self.columns.kept,
            "categories": tuple(encoder.summary for encoder in self.columns.encoder.categories.values()),
            "transform_validation": self.columns.encoder.transforms_marked,
        }

    def model_params(self) -> dict[str, Any]:
        """Return the Params from which a model makes the training's encoder of its inputs; decoders are set already."""
        categories = {name: encoder.entry for name, encoder in self.columns.encoder.categories.items()}
        params = {"categories": categories, "null_values": dict(self.columns.null_values)}
        return {name: value for name, value in params.items() if value}


def plan_frame(
    frame: DataFrame,
    request: RowRequest,
    trial: Trial,
    choose: Callable[[DataFrame, Columns], RowSource],
) -> RowPlan:
    """Plan a DataFrame's rows.

    Args:
        trial: runs the framework's model.
        choose: `choose_source` with its keywords.

    Raises:
        DataError: a column is missing, cannot be trained on or does not fit the model; there are no rows; or they
            could not be written to the store.
    """
    sample = sample_frame(frame, replace(request, by_name=trial.by_name))
    fields = find_fields(sample, trial, request.ragged.input_shapes)
    check_untransformed(sample, fields)
    columns = count_frame(frame, sample.columns) if sample.columns.uncounted else sample.columns
    columns = measure_frame(frame, columns) if columns.statistics else columns
    columns = columns.with_fields(fields.all)
    return RowPlan(columns, fields, choose(frame, columns), _get_held_share(request, columns))


def plan_files(files: DataFiles, validation: DataFiles | None, request: RowRequest, trial: Trial) -> RowPlan:
    """Plan the rows of Parquet files in a store.

    Args:
        validation: files with the rows for validation; None: there are none.
        trial: runs the framework's model.

    Raises:
        DataError: as `plan_frame`; or the files' columns differ.
    """
    sample = sample_files(files, replace(request, by_name=trial.by_name))
    fields = find_fields(sample, trial, request.ragged.input_shapes)
    check_untransformed(sample, fields)
    columns = count_files(files, sample.columns) if sample.columns.uncounted else sample.columns
    columns = measure_files(files, columns) if columns.statistics else columns
    columns = columns.with_fields(fields.all)
    return RowPlan(columns, fields, make_files_source(files, validation, columns), _get_held_share(request, columns))


def _get_held_share(request: RowRequest, columns: Columns) -> float:
    """Return `RowPlan.held_share`: none if rows are marked as they are read."""
    return 0.0 if columns.encoder.held_share else request.held_share
