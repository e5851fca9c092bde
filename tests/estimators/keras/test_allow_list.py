"""What a Keras model's files may name."""

from __future__ import annotations

import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import h5py
import keras
from packaging.version import Version

from spark_estimator import DataError
from spark_estimator.estimators.keras.allow_list import CLASSES, FUNCTIONS, check_archive, find_foreign_names
from spark_estimator.estimators.keras.objects import dump_model, read_model

#: [modules] Keras' classes that need trust: base classes, and those that run code or read files that a file names.
NEED_TRUST = {
    "keras.layers": {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"},
    "keras.optimizers.schedules": {"LearningRateSchedule"},
    "keras.constraints": {"Constraint"},
    "keras.quantizers": {"AWQConfig", "GPTQConfig", "QuantizationConfig"},
    "keras.src.ops.linalg": {"JVP"},
    "keras.src.ops.core": {
        *("AssociativeScan", "Cond", "ForiLoop", "Map", "Scan", "Switch", "VectorizedMap", "WhileLoop"),
    },
}


def classes_in(module: str) -> set[str]:
    """The names by which Keras writes classes of a module into files."""
    from keras.src import api_export

    classes = {name: kind for name, kind in vars(importlib.import_module(module)).items() if inspect.isclass(kind)}
    if module.startswith("keras.src"):
        return {
            name for name, kind in classes.items() if kind.__module__ == module and issubclass(kind, keras.Operation)
        }
    return {
        name
        for name, kind in classes.items()
        if hasattr(kind, "from_config") and api_export.get_name_from_symbol(kind) == f"{module}.{name}"
    }


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_optimizers_of_other_backends_need_no_trust(backend: str) -> None:
    program = """
import json, keras
from spark_estimator.estimators.keras.allow_list import CLASSES, find_foreign_names
for name in sorted(CLASSES["keras.optimizers"] - {"MultiOptimizer", "OptimizerMap", "LossScaleOptimizer"}):
    optimizer = getattr(keras.optimizers, name, None)
    for made in [optimizer(), keras.optimizers.LossScaleOptimizer(optimizer())] if optimizer else []:
        assert not (names := find_foreign_names(keras.saving.serialize_keras_object(made), ())), (name, names)
"""
    environ = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_optimizers_of_the_torch_backend_are_keras_own() -> None:
    modules = [module for module in CLASSES if ".torch." in module]
    assert {module.rpartition("_")[2] for module in modules} == {
        path.stem.removeprefix("torch_")
        for path in (Path(keras.__file__).parent / "src/backend/torch/optimizers").glob("torch_*.py")
        if path.stem not in ("torch_optimizer", "torch_parallel_optimizer")
    }


@pytest.mark.parametrize(
    "module",
    sorted(module for module in CLASSES.keys() - {"keras", "keras.src.models.functional"} if ".torch." not in module),
)
def test_each_class_of_keras_is_in_the_table_or_needs_trust(module: str) -> None:
    """Where this fails with a new Keras, decide for each new class whether it only computes."""
    if module.startswith("keras.src") and importlib.util.find_spec(module) is None:
        pytest.skip(f"Keras {keras.__version__} has no {module}")
    there = classes_in(module)
    assert there - CLASSES[module] == NEED_TRUST.get(module, set()) & there
    assert not CLASSES[module] & NEED_TRUST.get(module, set())
    if Version(keras.__version__) >= Version("3.15"):
        assert CLASSES[module] <= there


def test_each_function_of_keras_is_in_the_table() -> None:
    there = {
        name
        for module in (keras.activations, keras.losses, keras.metrics)
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__name__ == name
    }
    assert there - {"get", "serialize", "deserialize"} <= FUNCTIONS
    assert not FUNCTIONS & {"get", "serialize", "deserialize"}


def config_of(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return json.loads(archive.read("config.json"))


def test_models_of_keras_own_classes_name_nothing_strange() -> None:
    inputs = keras.Input((8, 4))
    hidden = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True, kernel_regularizer="l2"))(inputs)
    hidden = keras.layers.TimeDistributed(keras.layers.Dense(4, keras.activations.gelu, dtype="float32"))(hidden)
    hidden = keras.layers.MultiHeadAttention(2, 3)(hidden, hidden, attention_mask=None)
    hidden = keras.ops.sin(hidden[:, 1:3]) + 2 * hidden[:, :2]
    hidden = keras.layers.RNN(keras.layers.StackedRNNCells([keras.layers.LSTMCell(2), keras.layers.LSTMCell(3)]))(
        hidden
    )
    output = keras.layers.Dense(1, kernel_initializer=keras.initializers.VarianceScaling(seed=3))(hidden)
    net = keras.Model(inputs, output)
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10)
    net.compile(
        keras.optimizers.AdamW(rate),
        loss=[keras.losses.Huber(0.5)],
        metrics=[keras.metrics.AUC(), keras.metrics.MeanMetricWrapper(keras.losses.log_cosh), keras.losses.log_cosh],
    )
    net.train_on_batch(numpy.ones((2, 8, 4)), numpy.ones((2, 1)))
    content = dump_model(net)
    check_archive(content)
    assert find_foreign_names(config_of(content), {}) == []
    again = read_model(content, {}, compile=True, safe_mode=True)
    assert numpy.allclose(
        again.predict(numpy.ones((2, 8, 4)), verbose=0), net.predict(numpy.ones((2, 8, 4)), verbose=0)
    )


def test_vocabularies_are_read() -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("layers of texts need TensorFlow")
    words = keras.layers.StringLookup()
    words.adapt(["a", "b"])
    inputs = keras.Input((1,), dtype="string")
    content = dump_model(keras.Model(inputs, words(inputs)))
    check_archive(content)
    assert find_foreign_names(config_of(content), {}) == []
    assert read_model(content, {}, compile=False, safe_mode=True).layers[-1].get_vocabulary() == words.get_vocabulary()


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ({"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "/model"}}, "TFSMLayer"),
        ({"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {}}, "TorchModuleWrapper"),
        ({"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": "my>Own"}, "my>Own"),
        ({"class_name": "Dense", "config": {}}, "Dense"),
        ({"class_name": "Dense", "config": {}, "registered_name": "Known"}, "Known"),
        ({"module": "os", "class_name": "function", "config": "system"}, "system"),
        ({"module": "builtins", "class_name": "function", "config": "deserialize"}, "deserialize"),
        ({"module": "builtins", "class_name": "function", "config": "relu", "registered_name": "get"}, "relu"),
        ({"module": "builtins", "class_name": "function", "config": ["relu"]}, "['relu']"),
        ({"module": "keras.saving", "class_name": "load_model", "config": {}}, "load_model"),
        ({"module": "keras.layers.", "class_name": "Dense", "config": {}}, "Dense"),
        ({"module": ["keras.layers"], "class_name": "Dense", "config": {}}, "Dense"),
        ({"module": "keras.layers", "class_name": ["Dense"], "config": {}}, "['Dense']"),
        ({"class_name": "__lambda__", "config": {"value": ["4w=="]}}, "a Lambda"),
        ({"class_name": "__typespec__", "module": "os", "spec_name": "x", "config": []}, "__typespec__"),
        ({"module": "keras.layers", "class_name": "StringLookup", "config": {"vocabulary": "/words"}}, "StringLookup"),
        ({"module": "keras_hub.models", "class_name": "Backbone", "config": {}}, "Backbone"),
    ],
)
@pytest.mark.parametrize("place", ["config", "build_config", "compile_config", "args", "list"])
def test_names_that_are_strange(item: dict[str, Any], named: str, place: str) -> None:
    """At each place of a configuration."""
    inside = [[{"deep": item}]] if place == "list" else item
    whole = {"module": "keras.layers", "class_name": "Dense", "config": {}, "registered_name": None, place: inside}
    assert find_foreign_names([whole], {"Known"}) == [named]


def test_names_that_are_known() -> None:
    layer = {"module": "my.module", "class_name": "Own", "config": {}, "registered_name": "my>Own"}
    function = {"module": "builtins", "class_name": "function", "config": "own", "registered_name": "function"}
    assert find_foreign_names([layer, function], {"my>Own", "own"}) == []
    assert find_foreign_names([layer, function], {"my>Own", "my>own"}) == [], "Keras finds it by the last part"
    assert find_foreign_names([layer, function], {"Own"}) == ["my>Own", "own"]


def test_a_deep_configuration_is_read_to_its_end() -> None:
    config: Any = {"class_name": "__lambda__"}
    for _ in range(100_000):
        config = [config]
    assert find_foreign_names(config, {}) == ["a Lambda"]


def archive_of(tmp_path: Path, write: Any) -> bytes:
    """A ``.keras`` file with weights that `write` has made."""
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.create_group("layers")["own"] = numpy.ones(3)
        write(file)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.write(tmp_path / "weights.h5", "model.weights.h5")
    return stream.getvalue()


def add_virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(shape=(3,), dtype="f8")
    layout[:] = h5py.VirtualSource("/other.h5", "x", shape=(3,))
    file.create_virtual_dataset("virtual", layout)


@pytest.mark.parametrize(
    ("write", "flaw"),
    [
        (lambda file: file["layers"].__setitem__("x", h5py.ExternalLink("/other.h5", "/x")), "has a link at 'x'"),
        (lambda file: file["layers"].__setitem__("x", h5py.SoftLink("/layers/own")), "has a link at 'x'"),
        (lambda file: file.create_dataset("x", (3,), "f8", external=[("/etc/passwd", 0, 24)]), "no array of its own"),
        (add_virtual, "has no array of its own at 'virtual'"),
        (lambda file: file.create_dataset("x", data="text", dtype=h5py.string_dtype()), "no array of its own at 'x'"),
    ],
    ids=["external link", "soft link", "external data", "virtual data", "texts"],
)
def test_weights_that_name_other_files(tmp_path: Path, write: Any, flaw: str) -> None:
    with pytest.raises(DataError, match=flaw):
        check_archive(archive_of(tmp_path, write))


def test_weights_in_a_group_that_holds_itself(tmp_path: Path) -> None:
    check_archive(archive_of(tmp_path, lambda file: file["layers"].__setitem__("again", file["layers"])))
