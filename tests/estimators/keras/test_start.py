"""What every rank of `KerasEstimator.fit` runs first."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import sys
from types import SimpleNamespace

sys.modules["jax"] = None  # as if it was not installed
from spark_estimator.errors import DataError
from spark_estimator.estimators.keras.start import train

parts = SimpleNamespace(backend="jax", environment={"MINE": "1"})
try:
    train(SimpleNamespace(framework=parts, use_gpu=False))
except DataError as error:
    print(error)
"""


def test_a_backend_that_is_missing_is_named() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    assert "rank 0 has no jax, with which this model is trained: pip install 'keras>=3' jax" in done.stdout
