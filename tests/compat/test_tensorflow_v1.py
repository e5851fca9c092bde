"""A script of TensorFlow 1's time with ``import tensorflow as tf`` and ``import horovod.tensorflow``, unchanged."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "tensorflow" / "classic_script.py"

BEFORE = """
import sys
sys.modules["pyspark"] = None
from spark_estimator import compat
compat.install(tensorflow_v1=True)
compat.install(tensorflow_v1=True)
assert "tensorflow" not in sys.modules
"""

AFTER = """
assert tf.train.AdagradOptimizer is tf.compat.v1.train.AdagradOptimizer
assert tf.Session and tf.ConfigProto and tf.placeholder and not tf.executing_eagerly()
assert tf.__version__.startswith("2.")
layer = tf.keras.layers.Dense(1)  # Keras finds TensorFlow 2 behind the same name
compat.uninstall()
assert not hasattr(tf, "Session") and not hasattr(tf, "placeholder")
assert tf.executing_eagerly() and float(tf.Variable(2.0) * 2) == 4.0
import tensorflow
assert type(tensorflow).__getattribute__ is type(sys).__getattribute__
print("done")
"""


KERAS = """
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.layers import Dense
from tensorflow import keras
import numpy
import tensorflow.keras as again

K.set_session(tf.Session(config=tf.ConfigProto()))
assert K is again.backend and tf.keras.backend.set_session and keras.optimizers.SGD is again.optimizers.SGD
model = tf.keras.Sequential([Dense(1, input_shape=(2,))])
model.compile(optimizer=keras.optimizers.Adadelta(1.0), loss="mse")
history = model.fit(numpy.ones((4, 2)), numpy.ones(4), epochs=2, verbose=0).history["loss"]
assert history[1] < history[0]
compat.uninstall()
from tensorflow.keras import backend
assert not hasattr(backend, "set_session") and not hasattr(tf.keras.backend, "set_session")
print("done")
"""


REMOVED = """
import tensorflow as tf

def error_of(ask):
    try:
        ask()
    except (AttributeError, ImportError) as error:
        return f"{type(error).__name__}: {error}"

modes = tf.estimator.ModeKeys
print([modes.TRAIN, modes.EVAL, modes.PREDICT])
print(error_of(lambda: tf.estimator.Estimator))
print(error_of(lambda: tf.contrib.layers))
print(error_of(lambda: __import__("tensorflow.contrib.slim")))
print(error_of(lambda: tf.layers.conv2d))
print(error_of(lambda: tf.nothing))
compat.uninstall()
assert not hasattr(tf, "estimator")
"""


def run(folder: Path, text: str, **variables: str) -> list[str]:
    """The lines that a program prints, in a separate process with these variables more."""
    script = folder / "script.py"
    script.write_text(text)
    environ = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"} | environ | variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here")
def test_what_tensorflow_has_removed(tmp_path: Path) -> None:
    modes, estimator, contrib, imported, layers, nothing = run(tmp_path, BEFORE + REMOVED)
    assert modes == "['train', 'eval', 'infer']"
    assert estimator.startswith("AttributeError: module 'tensorflow.estimator' has no attribute 'Estimator': ")
    assert "removed tf.estimator in 2.16" in estimator
    assert contrib.startswith("AttributeError: module 'tensorflow' has no attribute 'contrib': ")
    assert imported.startswith("ModuleNotFoundError: No module named 'tensorflow.contrib': ")
    assert "removed tf.contrib in 2.0" in contrib and "removed tf.contrib in 2.0" in imported
    assert re.search(r"pip install 'tf_keras==2\.\d+\.\*', and set TF_USE_LEGACY_KERAS=1 before", layers)
    assert nothing == "AttributeError: module 'tensorflow' has no attribute 'nothing'"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="Keras 2 is not installed here")
def test_keras_2_has_its_names_of_tensorflow_1(tmp_path: Path) -> None:
    assert run(tmp_path, BEFORE + KERAS, TF_USE_LEGACY_KERAS="1") == ["done"]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here")
def test_a_script_as_it_was_written(tmp_path: Path) -> None:
    text = SCRIPT.read_text().replace("tensorflow.compat.v1", "tensorflow")
    text = text.replace("spark_estimator.tensorflow", "horovod.tensorflow")
    assert "import tensorflow as tf" in text and "import horovod.tensorflow as hvd" in text
    trained, last = run(tmp_path, BEFORE + text + AFTER)
    assert last == "done"
    weights, step = eval(trained)
    assert 199 <= step <= 200 and [round(weight, 1) for weight in weights] == [2.0, -1.0]
