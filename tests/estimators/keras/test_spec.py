"""The choice of Keras' backend in a process."""

from __future__ import annotations

import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import DataError
from spark_estimator.estimators.keras.spec import choose_backend


def test_a_backend_is_chosen_before_keras_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import sys

    for name in ("KERAS_BACKEND", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "MINE", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "before")
    used = keras.backend.backend()
    choose_backend(used)  # it is this one already
    other = "jax" if used != "jax" else "torch"
    with pytest.raises(DataError, match=f"runs on '{used}' in this process already, and .* on '{other}'"):
        choose_backend(other)
    assert os.environ["KERAS_BACKEND"] == "before"
    monkeypatch.delitem(sys.modules, "keras")
    choose_backend("jax", {"MINE": "1"}, use_gpu=False)
    names = ("KERAS_BACKEND", "MINE", "CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS")
    assert [os.environ[name] for name in names] == ["jax", "1", "-1", "cpu"]
