"""Without TensorFlow: one line with what to install. What does not need it does not load it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator._native import library_path
from spark_estimator.errors import remove_links
from tests.compat.interpreter import fresh


def test_without_tensorflow() -> None:
    printed = fresh(
        """
        import importlib.machinery
        real = importlib.machinery.PathFinder.find_spec
        importlib.machinery.PathFinder.find_spec = classmethod(
            lambda cls, name, path=None, target=None: None if name == "tensorflow" else real(name, path, target)
        )
        try:
            import spark_estimator.tensorflow
        except ModuleNotFoundError as error:
            print(error.name, str(error))
        """
    )
    assert printed.startswith("tensorflow spark_estimator.tensorflow (horovod.tensorflow) needs TensorFlow")
    assert "pip install tensorflow (tensorflow-cpu" in printed and "\n" not in printed


def test_others_do_not_load_it() -> None:
    program = """
        import sys
        import spark_estimator, spark_estimator.torch, spark_estimator.compat, spark_estimator.elastic
        spark_estimator.compat.install(tensorflow_v1=True)
        print(sorted(name for name in ("tensorflow", "keras") if name in sys.modules))
        """
    assert fresh(program) == "[]"


@pytest.mark.slow
def test_a_tensorflow_whose_c_api_lacks_a_function(tmp_path: Path) -> None:
    """Building a graph raises the error; eagerly collectives work."""
    (tmp_path / "libtensorflow_framework.so.2").symlink_to(library_path())
    printed = fresh(
        f"""
        import tensorflow as tf
        tf.sysconfig.get_lib = lambda: {str(tmp_path)!r}
        import spark_estimator.tensorflow as hvd
        hvd.init()
        print(float(hvd.allreduce(tf.constant(2.0))))
        for _ in range(2):
            try:
                with tf.Graph().as_default():
                    hvd.allreduce(tf.constant(2.0))
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    eager, *lines = remove_links(printed).splitlines()
    assert eager == "2.0" and len(lines) == 2
    for line in lines:
        assert line.startswith("NativeLibraryError TensorFlow 2.") and "they work eagerly" in line
        assert "has no function TF_" in line
