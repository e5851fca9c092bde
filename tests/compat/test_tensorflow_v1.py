"""A script of TensorFlow 1's time with ``import tensorflow as tf`` and ``import horovod.tensorflow``, unchanged."""

from __future__ import annotations

import importlib.util
import os
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


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed here")
def test_a_script_as_it_was_written(tmp_path: Path) -> None:
    text = SCRIPT.read_text().replace("tensorflow.compat.v1", "tensorflow")
    text = text.replace("spark_estimator.tensorflow", "horovod.tensorflow")
    assert "import tensorflow as tf" in text and "import horovod.tensorflow as hvd" in text
    script = tmp_path / "script.py"
    script.write_text(BEFORE + text + AFTER)
    environ = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    trained, last = done.stdout.strip().splitlines()
    assert last == "done"
    weights, step = eval(trained)
    assert 199 <= step <= 200 and [round(weight, 1) for weight in weights] == [2.0, -1.0]
