"""Without TensorFlow: one line with what to install. What does not need it does not load it."""

from __future__ import annotations

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
    assert "pip install 'spark-estimator[tensorflow]'" in printed and "\n" not in printed


def test_others_do_not_load_it() -> None:
    program = """
        import sys
        import spark_estimator, spark_estimator.torch, spark_estimator.compat, spark_estimator.elastic
        spark_estimator.compat.install(tensorflow_v1=True)
        print(sorted(name for name in ("tensorflow", "keras") if name in sys.modules))
        """
    assert fresh(program) == "[]"
