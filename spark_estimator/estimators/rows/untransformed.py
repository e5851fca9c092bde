"""Checks that rows for validation fit the model's tensors where transformation_fn is called for training alone."""

from __future__ import annotations

from spark_estimator.errors import DataError
from spark_estimator.estimators.rows.sampling import RowSample
from spark_estimator.estimators.rows.shapes import Fields, name_first_rows

_REMEDY = (
    "Prepare the columns before fit(), so that transformation_fn only changes their values, or leave "
    "transform_validation=True."
)


def check_untransformed(sample: RowSample, fields: Fields) -> None:
    """Make the tensors of the first rows without the function, if rows for validation are read without it.

    Raises:
        DataError: a column is missing, or of another type or shape than the function's result.
    """
    rows = sample.untransformed
    if rows is None:
        return
    encoder = sample.columns.encoder.untransformed.with_fields(fields.all)
    missing = next((name for name in encoder.columns if name not in rows.schema.names), None)
    if missing is not None:
        raise DataError(
            f"transform_validation=False: the rows for validation have no column {missing!r}, which transformation_fn "
            f"creates. {_REMEDY}"
        )
    try:
        for column in sample.columns.fed:
            shape = encoder.decoders[column.name].shape if column.name in encoder.decoders else column.shape
            if shape != column.shape:
                raise DataError(
                    f"column {column.name!r} is decoded as {list(shape or ())}, and transformation_fn returns "
                    f"{list(column.shape or ())}."
                )
        encoder.encode(rows, source=name_first_rows(rows))
    except Exception as error:  # of Arrow and NumPy, too
        raise DataError(
            "transform_validation=False: the rows for validation don't fit the model without transformation_fn: "
            f"{str(error).rstrip('.')}. {_REMEDY}"
        ) from error
