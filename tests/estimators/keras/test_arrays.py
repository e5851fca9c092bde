"""Arrays of rows in the shapes and the structure of a Keras model."""

from __future__ import annotations

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError
from spark_estimator.data.fields import Field
from spark_estimator.estimators.keras.arrays import get_input_shapes, to_arrays, to_inputs, to_labels, to_outputs


def field(name: str, width: int) -> Field:
    return Field((name,), ("c0",), (width,), "float32", (width,))


def test_shapes_of_inputs() -> None:
    assert get_input_shapes(keras.Sequential([keras.layers.Input((2, 3)), keras.layers.Flatten()])) == [(2, 3)]
    assert get_input_shapes(keras.Sequential([keras.layers.Dense(1)])) is None, "it is not built"


def test_an_input_gets_its_shape() -> None:
    net = keras.Sequential([keras.layers.Input((2, 3)), keras.layers.Flatten()])
    assert to_inputs(net, [numpy.zeros((4, 6))], [field("x", 6)]).shape == (4, 2, 3)
    with pytest.raises(DataError, match=r"x: 5 values a row, and input 1 .* the shape \[-1, 2, 3\], which has 6"):
        to_inputs(net, [numpy.zeros((4, 5))], [field("x", 5)])


def test_a_dict_s_inputs_are_columns_of_the_same_names() -> None:
    inputs = {name: keras.Input((1,), name=name) for name in ("a", "b")}
    net = keras.Model(inputs, keras.layers.Add()(list(inputs.values())))
    first, second = numpy.zeros((2, 1)), numpy.ones((2, 1))
    by_name = to_inputs(net, [first, second], [field("b", 1), field("a", 1)])
    assert (by_name["a"].max(), by_name["b"].max()) == (1, 0)
    in_order = to_inputs(net, [first, second], [field("x", 1), field("y", 1)])
    assert (in_order["a"].max(), in_order["b"].max()) == (0, 1)


def test_labels_have_the_structure_of_the_outputs() -> None:
    output, label = numpy.zeros((4, 2, 3)), numpy.zeros((5, 6))
    assert to_labels(output, [label], None).shape == (5, 2, 3)
    assert to_labels(output, [numpy.zeros((5, 1))], None).shape == (5, 1), "class numbers stay as they are"
    assert to_labels({"one": output}, [label], [[-1, 3, 2]])["one"].shape == (5, 3, 2)
    assert [array.shape for array in to_labels([output, output], [label, label], None)] == [(5, 2, 3)] * 2
    assert to_outputs({"b": 1, "a": 2}) == [1, 2] and to_outputs((1, 2)) == [1, 2] and to_outputs(3) == [3]


def test_stored_pixels_become_the_tensor_s_type() -> None:
    pixels = Field(("x",), ("c0",), (2,), "float32", (2,), (), "uint8")
    (array,) = to_arrays([numpy.ones((3, 2), numpy.uint8)], [pixels])
    assert array.dtype == "float32" and array.shape == (3, 2)
