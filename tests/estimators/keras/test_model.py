"""`KerasModel`: predictions without Spark, and its model."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import KerasModel
from spark_estimator.data.fields import Field

ROWS = numpy.arange(10, dtype=numpy.float32).reshape(5, 2)


def network() -> Any:
    return keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])


def model_of(net: Any, **parameters: Any) -> KerasModel:
    field = Field(("x",), ("c0",), (2,), "float32", (2,))
    names: dict[str, Any] = {"feature_columns": ["x"], "label_columns": ["y"], **parameters}
    return KerasModel(model=net, inputs=[field], outputs=[1], label_types=["float"], **names)


def test_a_model_predicts_in_batches() -> None:
    assert numpy.allclose(model_of(network(), batch_size=2).predict(ROWS), ROWS.sum(1, keepdims=True))


def test_a_model_is_replaced_and_copied() -> None:
    model = model_of(network())
    copied = model.keras_model()
    copied.layers[-1].kernel.assign(2 * copied.layers[-1].kernel)
    assert numpy.allclose(model.predict(ROWS), ROWS.sum(1, keepdims=True)), "a copy shares no numbers"
    assert numpy.allclose(model.setModel(copied).predict(ROWS), 2 * ROWS.sum(1, keepdims=True))
    with pytest.raises(TypeError, match=r"model must be a model of Keras 3 or Keras 2 \(keras\.Model\); got 3"):
        model.setModel(3)


def test_custom_objects_are_those_that_were_set_and_those_of_the_model() -> None:
    def mine() -> None: ...

    assert model_of(network(), custom_objects={"mine": mine}).getCustomObjects()["mine"] is mine


@pytest.mark.slow
def test_a_model_made_by_hand_finds_its_columns_in_the_dataframe(spark: Any) -> None:
    from pyspark.sql.types import DoubleType

    metadata = {"y": {"spark_data_type": DoubleType}}
    model = KerasModel(
        model=network(), feature_columns=["x"], label_columns=["y"], _metadata=metadata, _floatx="float32"
    )
    frame = spark.createDataFrame([([1.0, 2.0],), ([3.0, 4.0],)], "x array<float>")
    assert [row["y__output"] for row in model.transform(frame).collect()] == [3.0, 7.0]
    assert model.getOutputCols() == ["y__output"]


def test_a_model_made_by_hand_has_the_loss_that_it_was_compiled_with() -> None:
    """So that a class is known where the label is a whole number."""
    net = network()
    model = KerasModel(model=net, feature_columns=["x"], label_columns=["y"])
    assert model._find_output_kinds() is None
    net.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    assert model._find_output_kinds() == ["logit"]


class ByRow(KerasModel):
    def get_prediction_fn(self) -> Any:
        def predict(model: Any, row: Any) -> Any:
            return model.predict_on_batch(numpy.array([[len(row["text"]), 1.0]], numpy.float32))

        return predict


@pytest.mark.slow
def test_a_subclass_may_predict_row_by_row(spark: Any) -> None:
    model = ByRow(model=network(), label_columns=["y"], output_cols=["p"])
    frame = spark.createDataFrame([("a",), ("abc",)], "text string")
    assert [row["p"] for row in model.transform(frame).collect()] == [2.0, 4.0]
