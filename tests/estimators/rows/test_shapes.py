"""Types and shapes of tensors, found by trying them on the first rows."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest

from spark_estimator import DataError
from spark_estimator.data.columns import Readable
from spark_estimator.data.row_encoder import RowEncoder
from spark_estimator.estimators.rows.sampling import Columns, RowSample
from spark_estimator.estimators.rows.shapes import (
    Fields,
    LabelError,
    describe_fields,
    find_fields,
    find_not_finite,
    make_class_error,
)


class Model:
    """Takes inputs and labels of some types only."""

    floating = "float32"
    takes = "the model"
    by_name = False

    def __init__(self, inputs: int, wants: list[str]) -> None:
        self.inputs = inputs
        self.wants = wants
        self.tried: list[list[str]] = []

    def count_positional(self) -> tuple[int, float]:
        return self.inputs, self.inputs

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        dtypes = [field.dtype for field in fields.all]
        self.tried.append(dtypes)
        if dtypes != self.wants:
            raise RuntimeError(f"not {dtypes}.")
        return (1,)


def sample_of(features: dict[str, list[Any]], label: list[Any]) -> RowSample:
    def column(name: str, values: list[Any]) -> Readable:
        kind = "int64" if isinstance(values[0], int) else "float32"
        return Readable(name, False, kind, None, kind)

    columns = Columns(
        tuple(column(name, values) for name, values in features.items()),
        (column("y", label),),
        None,
        None,
        (),
        RowEncoder(()),
    )
    values = [*features.values(), label]
    rows = pyarrow.RecordBatch.from_arrays(
        list(map(pyarrow.array, values)), names=[f"c{n}" for n in range(len(values))]
    )
    return RowSample(columns, rows, (1,) * len(values), (None,) * len(values))


def test_types_are_tried_until_they_fit() -> None:
    model = Model(1, ["float32", "int64"])
    fields = find_fields(sample_of({"a": [1, 2]}, [0.0, 1.0]), model, None)
    assert model.tried[0] == ["int64", "float32"], "the columns' own types are tried first"
    assert ([field.dtype for field in fields.all], fields.outputs) == (["float32", "int64"], (1,))


def test_a_label_with_fractions_is_no_class() -> None:
    model = Model(1, ["float32", "int64"])
    with pytest.raises(DataError, match=r"failed on the driver with RuntimeError: not \['float32', 'float32'\]\. The "):
        find_fields(sample_of({"a": [1.0, 2.0]}, [0.0, 0.5]), model, None)
    assert model.tried == [["float32", "float32"]]


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("Could not interpret loss: mean_sqared", ""),
        ("mat1 and mat2 shapes cannot be multiplied", " Set input_shapes or label_shapes to change the shapes."),
        (
            "expected target dtype to be Long or Byte, but got Float",
            " The loss takes integers as labels: cast the column",
        ),
        ("expected scalar type Long but found Float", " The loss takes integers as labels: cast the column, df.with"),
    ],
)
def test_a_failure_of_the_model_has_the_remedy_that_fits(failure: str, remedy: str) -> None:
    class Fails(Model):
        def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
            raise RuntimeError(failure)

    with pytest.raises(DataError) as caught:
        find_fields(sample_of({"a": [1.0, 2.0]}, [0.0, 0.5]), Fails(1, []), None)
    after = str(caught.value).partition("the loss's labels y: float32[-1].")[2].partition("\nmore: ")[0]
    assert after.startswith(remedy) and bool(after) == bool(remedy)


def test_columns_are_inputs_or_stand_side_by_side() -> None:
    two = sample_of({"a": [1.0, 2.0], "b": [3.0, 4.0]}, [0.5, 1.5])
    apart = find_fields(two, Model(2, ["float32"] * 3), None)
    assert [field.names for field in apart.inputs] == [("a",), ("b",)]
    together = find_fields(two, Model(1, ["float32"] * 2), None)
    assert [(field.names, field.shape) for field in together.inputs] == [(("a", "b"), (2,))]
    shaped = find_fields(two, Model(1, ["float32"] * 2), [[-1, 2, 1]])
    assert shaped.inputs[0].shape == (2, 1)
    for model, shapes, words in (
        (Model(3, []), None, r"takes 3 inputs, but there are 2 feature columns \('a', 'b'\)"),
        (Model(1, []), [[-1, 3]], r"input_shapes has \[-1, 3\] for 'a', 'b', which has 2 values per row, not 3"),
        (Model(1, []), [[-1]] * 3, "input_shapes has 3 shapes for 2 feature columns"),
    ):
        with pytest.raises(DataError, match=words):
            find_fields(two, model, shapes)


def test_values_that_are_not_finite_are_named() -> None:
    sample = sample_of({"a": [1.0, 2.0], "b": [3.0, float("inf")]}, [0.5, 1.5])
    fields = find_fields(sample, Model(1, ["float32"] * 2), None)
    text = find_not_finite(sample.rows, fields)
    assert text == "column 'b' contains inf. Filter such rows of the DataFrame, or replace the value"
    assert find_not_finite(sample.rows.slice(0, 1), fields) == ""
    assert describe_fields(fields).startswith(
        "The model's inputs were a, b: float32[-1, 2]; the loss's labels y: float32[-1]."
    )


def test_the_error_of_a_class_has_the_number_of_classes() -> None:
    assert "column 'y' contains class 7, but the model's output has 3 classes" in str(make_class_error("y", 7, 3))


def many_labels(count: int) -> RowSample:
    """A feature of fractions, and labels of whole numbers, each of which may be a class or a number."""
    names = [f"y{number}" for number in range(count)]
    readables = [Readable(name, False, "int64", None, "int64") for name in names]
    feature = Readable("x", False, "float32", None, "float32")
    columns = Columns((feature,), tuple(readables), None, None, (), RowEncoder(()))
    arrays = [pyarrow.array([0.5, 1.5]), *(pyarrow.array([0, 1]) for _ in names)]
    rows = pyarrow.RecordBatch.from_arrays(arrays, names=[f"c{n}" for n in range(len(arrays))])
    return RowSample(columns, rows, (1,) * len(arrays), (None,) * len(arrays))


class NamesLabels(Model):
    """Raises the errors of all labels of another type than it wants."""

    def run(self, rows: pyarrow.RecordBatch, fields: Fields) -> tuple[int, ...]:
        self.tried.append([field.dtype for field in fields.all])
        pairs = enumerate(zip(fields.labels, self.wants, strict=True))
        wrong = {n: field for n, (field, want) in pairs if field.dtype != want}
        errors = {n: RuntimeError(f"{field.name} is {field.dtype}.") for n, field in wrong.items()}
        if errors:
            raise LabelError(errors)
        return (1,) * len(self.wants)


def test_the_trials_do_not_grow_with_the_labels() -> None:
    wants = ["int64" if number % 3 else "float32" for number in range(60)]
    model = NamesLabels(1, wants)
    fields = find_fields(many_labels(60), model, None)
    assert [field.dtype for field in fields.labels] == wants
    assert len(model.tried) == 2
    fails = NamesLabels(1, [*wants[:-1], "float16"])
    with pytest.raises(DataError, match=r"with RuntimeError: y59 is int64\. The "):
        find_fields(many_labels(60), fails, None)
    assert len(fails.tried) == 2
    nameless = Model(1, ["float32", *wants])
    with pytest.raises(DataError, match="failed on the driver with RuntimeError: not"):
        find_fields(many_labels(60), nameless, None)
    assert len(nameless.tried) == 17, "the first types, the last ones, and some mixtures"
