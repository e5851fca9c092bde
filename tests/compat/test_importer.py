"""Old names in fresh interpreters: what they lead to, what they leave alone, and what they cost."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from spark_estimator.compat import shims_path
from tests.compat.interpreter import ROOT, fresh


@pytest.fixture
def real_horovod(tmp_path: Path) -> Path:
    """A folder with other packages `horovod` and `sparkdl`."""
    for name in ("horovod", "sparkdl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"__version__ = 'real {name}'\n")
        (tmp_path / name / "torch.py").write_text("real = True\n")
    return tmp_path


def test_old_names_are_the_new_things() -> None:
    fresh(
        """
        import spark_estimator.compat
        spark_estimator.compat.install()
        import horovod.torch as hvd
        import spark_estimator.torch, spark_estimator.errors, sys
        assert hvd is spark_estimator.torch is sys.modules["horovod.torch"]
        assert hvd.__name__ == hvd.__spec__.name == "spark_estimator.torch"
        import horovod
        assert horovod.__version__ == "0.28.1" and horovod.torch is hvd
        from horovod.torch.mpi_ops import allreduce_async_, synchronize, rank, size, is_homogeneous
        from horovod.torch.compression import Compression
        from horovod.torch.optimizer import DistributedOptimizer, _DistributedOptimizer
        from horovod.torch.functions import broadcast_object
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.util import gloo_built, mpi_built, nccl_built, extension_available, gpu_available
        assert DistributedOptimizer is hvd.DistributedOptimizer
        assert HorovodInternalError is hvd.HorovodInternalError
        assert gloo_built() is True and mpi_built(verbose=True) is False and nccl_built() is False
        assert extension_available("torch") and not extension_available("mxnet")
        assert gpu_available("torch") in (True, False)
        assert sys.modules["horovod.torch.mpi_ops"] is sys.modules["spark_estimator.torch.mpi_ops"]
        # No file was loaded a second time under an old name.
        files = [m.__file__ for n, m in sys.modules.items() if n.startswith("spark_estimator.torch")]
        assert len(files) == len(set(files))
        """
    )


def test_runner_names() -> None:
    pytest.importorskip("spark_estimator.runner")
    fresh(
        """
        from spark_estimator.compat import install
        install()
        from sparkdl import HorovodRunner
        from sparkdl.horovod import log_to_driver
        from sparkdl.horovod.runner_base import HorovodRunner as same
        import sparkdl, spark_estimator.runner, spark_estimator.observe.driver_log
        assert HorovodRunner is same is sparkdl.HorovodRunner is spark_estimator.runner.HorovodRunner
        assert log_to_driver is spark_estimator.observe.driver_log.log_to_driver
        """
    )


def test_names_of_what_runs_functions() -> None:
    fresh(
        """
        from spark_estimator.compat import install
        install()
        import horovod, horovod.spark
        from horovod.spark.common.backend import Backend, LocalBackend, SparkBackend, default_num_proc
        from horovod.runner import run as local_run
        from horovod.spark.runner import run as spark_run
        import sys, spark_estimator, spark_estimator.spark
        assert horovod.run is local_run is spark_estimator.run
        assert horovod.spark is spark_estimator.spark
        assert horovod.spark.run is spark_run is spark_estimator.spark.run
        assert SparkBackend is spark_estimator.spark.SparkBackend and issubclass(LocalBackend, Backend)
        assert not {"pyspark", "pyarrow", "torch"} & sys.modules.keys()
        assert horovod.run(lambda: 1, num_proc=2) == [1, 1]
        """
    )


def test_names_that_are_not_served() -> None:
    printed = fresh(
        """
        from spark_estimator.compat import install
        import importlib, importlib.util
        install()
        import horovod, sparkdl
        for statement in (
            "import horovod.mxnet as hvd", "import horovod.spark.nothing", "import horovod.torch.nothing",
            "import sparkdl.transformers", "from horovod import ray",
        ):
            try:
                exec(statement)
            except ImportError as error:
                print(error)
            else:
                print("imported", statement)
        assert not hasattr(horovod, "mxnet") and not hasattr(sparkdl, "__file__")
        try:
            importlib.util.find_spec("horovod.mxnet")
        except ModuleNotFoundError:
            print("as if it were not installed")
        assert importlib.util.find_spec("horovod").name == "horovod"
        assert importlib.util.find_spec("horovod.torch")
        """
    ).splitlines()
    assert [line.partition(" (available:")[0] for line in printed] == [
        "No module named 'horovod.mxnet': MXNet is retired and is not supported",
        "No module named 'horovod.spark.nothing': use `spark_estimator.spark`, "
        "or the estimators of `horovod.spark.torch`, `.lightning` or `.keras`",
        "No module named 'horovod.torch.nothing': use `spark_estimator.torch`",
        "No module named 'sparkdl.transformers': "
        "use `sparkdl.HorovodRunner`, `sparkdl.horovod.log_to_driver` or its Keras `LogCallback`",
        "No module named 'horovod.ray': Ray is not supported; use Ray's own trainers",
        "as if it were not installed",
    ]


def test_installing_loads_nothing_and_changes_nothing_twice() -> None:
    printed = fresh(
        """
        import sys
        before = set(sys.modules)
        from spark_estimator.compat import install
        install()
        install()
        print(sorted(name for name in set(sys.modules) - before if name.partition(".")[0] in
              ("torch", "numpy", "pyspark", "cloudpickle", "ctypes", "horovod", "sparkdl")))
        print(len([finder for finder in sys.meta_path if type(finder).__name__ == "AliasFinder"]))
        """
    )
    assert printed.split() == ["[]", "1"]


def test_uninstall() -> None:
    fresh(
        """
        import sys
        from spark_estimator.compat import install, uninstall
        uninstall()
        install()
        import horovod.common.exceptions, sparkdl.horovod
        uninstall()
        assert not [name for name in sys.modules if name.startswith(("horovod", "sparkdl"))]
        try:
            import horovod
        except ModuleNotFoundError as error:
            assert str(error) == "No module named 'horovod'"
        else:
            raise AssertionError
        install()
        import horovod.common.exceptions
        """
    )


def test_a_real_horovod_is_left_alone(real_horovod: Path) -> None:
    fresh(
        """
        from spark_estimator.compat import install, real_horovod_present
        assert real_horovod_present()
        install()
        import horovod.torch, sparkdl
        assert horovod.__version__ == "real horovod" and horovod.torch.real and sparkdl.__version__ == "real sparkdl"
        try:
            import horovod.tensorflow
        except ModuleNotFoundError as error:
            assert str(error) == "No module named 'horovod.tensorflow'"
        try:
            install(force=True)
        except RuntimeError as error:
            assert "horovod has already been imported from" in str(error) and "before the first import" in str(error)
        else:
            raise AssertionError
        """,
        path=(ROOT, real_horovod),
    )


def test_a_real_horovod_gives_way_by_force(real_horovod: Path) -> None:
    fresh(
        """
        from spark_estimator.compat import install
        install()
        install(force=True)
        import horovod.common.exceptions, sparkdl
        assert horovod.__version__ == "0.28.1" and "HorovodRunner" in dir(sparkdl)
        """,
        path=(ROOT, real_horovod),
    )


def test_a_mere_folder_of_that_name_is_no_horovod(tmp_path: Path) -> None:
    (tmp_path / "horovod" / "examples").mkdir(parents=True)  # a clone of its repository, in the current folder
    program = """
        from spark_estimator.compat import install, real_horovod_present
        assert not real_horovod_present()
        install()
        import horovod
        assert horovod.__version__ == "0.28.1"
        """
    fresh(program, cwd=tmp_path)
    fresh(program, path=(shims_path(), ROOT), cwd=tmp_path)


def test_shims_on_the_path(tmp_path: Path) -> None:
    program = """
        import horovod.common.exceptions
        from horovod.common.util import gloo_built
        import sparkdl.horovod, sys, importlib.util
        import horovod.common.elastic, spark_estimator.elastic
        assert horovod.common.elastic is spark_estimator.elastic
        assert horovod.__version__ == "0.28.1" and "HorovodRunner" in dir(sparkdl)
        assert importlib.util.find_spec("horovod") and importlib.util.find_spec("sparkdl")
        """
    fresh(program, path=(shims_path(), ROOT))
    # From anywhere, without the package on the path: the shims are inside it.
    fresh(program, path=(shims_path(),), cwd=tmp_path)
    fresh("from spark_estimator.compat import install\ninstall()" + textwrap.dedent(program), path=(shims_path(), ROOT))


def test_shims_make_way_for_a_real_horovod(real_horovod: Path) -> None:
    program = """
        import horovod.torch, sparkdl
        assert horovod.__version__ == "real horovod" and horovod.torch.real, horovod
        assert sparkdl.__version__ == "real sparkdl"
        from spark_estimator.compat import real_horovod_present
        assert real_horovod_present()
        """
    fresh(program, path=(shims_path(), ROOT, real_horovod))
    fresh(program, path=(real_horovod, shims_path(), ROOT))


def test_what_a_function_captured_travels_under_its_real_name(tmp_path: Path) -> None:
    program = """
        from spark_estimator.compat import install
        install()
        import cloudpickle
        import horovod.torch
        import horovod.torch as hvd
        from horovod.torch import allreduce

        def short():
            return hvd.__name__, allreduce.__module__

        def long():
            return horovod.torch.__name__, horovod.__version__

        class Model:
            def __call__(self):
                return hvd.Compression.fp16.__name__

        for function, name in ((short, "short"), (long, "long"), (Model(), "model")):
            with open(name, "wb") as file:
                cloudpickle.dump(function, file)
        """
    fresh(program, cwd=tmp_path)
    # Where nothing is installed, a name that was captured under its short form is still found...
    load = """
        import pickle, sys
        short, model = (pickle.load(open(name, "rb")) for name in ("short", "model"))
        print(short()[0], short()[1], model())
        """
    expected = "spark_estimator.torch spark_estimator.torch.collectives.differentiable FP16Compressor"
    assert fresh(load, cwd=tmp_path) == expected
    # ... and the package `horovod` itself where a worker has installed the aliases before it unpickles.
    load = """
        import pickle
        from spark_estimator.compat import install
        install()
        print(*pickle.load(open("long", "rb"))())
        """
    assert fresh(load, cwd=tmp_path) == "spark_estimator.torch 0.28.1"


def test_the_finder_keeps_out_of_other_imports() -> None:
    from spark_estimator.compat.importer import AliasFinder

    assert AliasFinder(force=True).find_spec("horovodx") is None
    assert AliasFinder(force=True).find_spec("torch.horovod") is None
