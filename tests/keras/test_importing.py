"""Errors where Keras is missing, too old, or on an unsupported backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.interpreter import ROOT, fresh


@pytest.mark.parametrize(
    ("missing", "advice"),
    [("keras", "pip install keras, on the workers"), ("tensorflow", "set KERAS_BACKEND (torch, jax, tensorflow)")],
)
def test_what_is_missing_is_told_with_what_to_do(missing: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text(f'raise ModuleNotFoundError("No module named {missing!r}", name={missing!r})')
    printed = fresh(
        """
        from spark_estimator.compat import install
        install()
        try:
            import sparkdl.horovod.tensorflow.keras
            sparkdl.horovod.tensorflow.keras.LogCallback
        except ImportError as error:
            print(error)
        """,
        path=(tmp_path, ROOT),
    )
    assert f"No module named '{missing}'" in printed and advice in printed and len(printed.splitlines()) == 1


@pytest.mark.parametrize(("version", "supported"), [("1.0", False), ("2.15.0", False), ("3.0.1", True), ("10.0", True)])
def test_the_release_of_keras(version: str, supported: bool, tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text(f"__version__ = {version!r}")
    printed = fresh(
        """
        try:
            from spark_estimator.keras import importing
            print(importing.keras.__version__)
        except ImportError as error:
            print(error.name, error)
        """,
        path=(tmp_path, ROOT),
    )
    refused = f"keras Keras {version} is too old; Keras 3 is required: pip install -U 'keras>=3'."
    assert printed == (version if supported else refused)


def test_the_backend(tmp_path: Path) -> None:
    text = "__version__ = '3.9'\nclass backend:\n    name = 'jax'\n    backend = staticmethod(lambda: backend.name)\n"
    (tmp_path / "keras.py").write_text(text)
    printed = fresh(
        """
        from spark_estimator.keras.importing import backend, keras
        print(backend())
        keras.backend.name = "openvino"
        try:
            backend()
        except ImportError as error:
            print(error)
        """,
        path=(tmp_path, ROOT),
    )
    supported, refused = printed.splitlines()
    assert supported == "jax"
    assert refused.startswith("Keras' backend is 'openvino'; supported backends are torch, tensorflow and jax.")
