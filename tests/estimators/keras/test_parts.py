"""The parameters of `KerasEstimator` that are Keras'."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import KerasEstimator
from spark_estimator.estimators.keras.objects import Recipe, unpack
from spark_estimator.estimators.keras.parts import get_output_kind, get_output_kinds, make_parts


def network(**compiled: Any) -> Any:
    net = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    if compiled:
        net.compile(**compiled)
    return net


def recipe_of(**parameters: Any) -> Recipe:
    estimator = KerasEstimator(**{"label_cols": ["y"], **parameters})
    recipe: Recipe = unpack(make_parts(estimator._value)[0].recipe)
    return recipe


def test_arguments_come_before_what_the_model_was_compiled_with() -> None:
    net = network(optimizer=keras.optimizers.SGD(0.5), loss="mae")
    recipe = recipe_of(model=net)
    assert (recipe.loss, float(keras.ops.convert_to_numpy(recipe.optimizer.learning_rate))) == ("mae", 0.5)
    recipe = recipe_of(model=net, loss="mse", optimizer="adam", learning_rate=0.125)
    assert (recipe.loss, type(recipe.optimizer)) == ("mse", keras.optimizers.Adam)
    assert float(keras.ops.convert_to_numpy(recipe.optimizer.learning_rate)) == 0.125
    assert float(keras.ops.convert_to_numpy(net.optimizer.learning_rate)) == 0.5, "the user's model stays as it is"


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"model": None}, TypeError, r"model must be a model of Keras 3 or Keras 2 \(keras\.Model\); got None"),
        ({"optimizer": None}, TypeError, "model is not compiled, so that optimizer= is needed"),
        ({"loss": None}, ValueError, "loss is missing, and the model is not compiled with one"),
        ({"label_cols": ["y", "z"], "loss": ["mse"] * 3}, ValueError, "3 losses were given for 2 label columns"),
        ({"callbacks": [3]}, TypeError, "callbacks are objects of keras.callbacks.Callback; one was 3"),
        (
            {"checkpoint_callback": keras.callbacks.Callback()},
            TypeError,
            "checkpoint_callback must be a keras.callbacks.M",
        ),
        ({"loss_weights": [1, 2]}, ValueError, "2 loss_weights were given for 1 label columns"),
        (
            {"optimizer": keras.optimizers.SGD(gradient_accumulation_steps=2), "backward_passes_per_step": 2},
            ValueError,
            "has gradient_accumulation_steps=2, and backward_passes_per_step=2 would accumulate once more",
        ),
    ],
)
def test_parameters_that_do_not_fit(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        recipe_of(**{"model": network(), "optimizer": "sgd", "loss": "mse", **changed})


def test_identities_name_the_settings() -> None:
    def identity(**changed: Any) -> Any:
        values = {
            "model": network(),
            "optimizer": "sgd",
            "loss": keras.losses.BinaryCrossentropy(True),
            "label_cols": ["y"],
        }
        return make_parts(KerasEstimator(**{**values, **changed})._value)[0].identity

    assert any("from_logits=True" in line for line in identity()["loss"])
    assert identity()["loss"] != identity(loss=keras.losses.BinaryCrossentropy())["loss"]
    huber = [identity(loss=keras.losses.Huber(delta))["loss"] for delta in (0.5, 1.0)]
    assert huber[0] != huber[1], "a setting that is not in the configuration"
    assert identity()["optimizer"] == identity(optimizer=keras.optimizers.SGD(name="other"))["optimizer"]
    assert identity()["optimizer"] != identity(learning_rate=0.5)["optimizer"]


def test_a_loss_decides_what_an_output_means() -> None:
    assert get_output_kind("binary_crossentropy") == "probability"
    assert get_output_kind(keras.losses.BinaryCrossentropy(from_logits=True)) == "logit"
    assert get_output_kind(keras.losses.SparseCategoricalCrossentropy()) == "probabilities"
    assert get_output_kind(keras.losses.categorical_crossentropy) == "probabilities"
    assert get_output_kind("mse") is None
    assert get_output_kind("bce") == "probability"
    assert get_output_kind(functools.partial(keras.losses.binary_crossentropy, from_logits=True)) == "logit"

    def binary_crossentropy(label: Any, output: Any) -> Any:
        return keras.losses.binary_crossentropy(label, output, from_logits=True)

    assert get_output_kind(binary_crossentropy) is None, "the user's own may take anything"


def test_a_subclass_of_a_loss_is_of_its_kind_unless_it_computes_another() -> None:
    class OfLogits(keras.losses.BinaryCrossentropy):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(from_logits=True)

    class Own(OfLogits):
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return y_true - y_pred

    assert [get_output_kind(loss) for loss in (OfLogits(), Own())] == ["logit", None]


def test_losses_for_several_outputs() -> None:
    inputs = keras.layers.Input((2,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("price", "sold")]
    model = keras.Model(inputs, outputs)
    for loss in ({"price": "mse", "sold": "binary_crossentropy"}, ["mse", "binary_crossentropy"]):
        assert get_output_kinds(model, loss, 2) == [None, "probability"]
    assert get_output_kinds(model, "binary_crossentropy", 2) == ["probability", "probability"]
    assert get_output_kinds(model, ["mse"], 2) == [None, None]


def f1(truth: Any, output: Any) -> Any:
    return keras.ops.mean(truth * output)


@pytest.mark.parametrize(
    "metrics",
    [
        f1,
        ["mae", f1],
        [{"first": [f1], "second": "mae"}],
        [keras.metrics.MeanMetricWrapper(f1, name="own")],
    ],
)
def test_functions_that_are_no_means_are_named(metrics: Any) -> None:
    with pytest.warns(UserWarning, match=r"metrics: f1: .* Keras' metric objects, such as keras\.metrics\.AUC\(\), "):
        KerasEstimator(model=network(), optimizer="sgd", loss="mse", metrics=metrics, label_cols=["y"])._make_training()
    with pytest.warns(UserWarning, match="metrics: f1: "):
        KerasEstimator(
            model=network(optimizer="sgd", loss="mse", weighted_metrics=[f1]), label_cols=["y"]
        )._make_training()


@pytest.mark.filterwarnings("error:metrics")
def test_objects_of_keras_are_right_for_all_rows() -> None:
    metrics = [keras.metrics.AUC(), "AUC", keras.metrics.F1Score(), keras.metrics.BinaryAccuracy(), keras.losses.huber]
    recipe_of(model=network(), optimizer="sgd", loss="mse", metrics=metrics)
