"""Submodules of Horovod that its packages bind as they are imported: attributes here, too, without an import."""

from __future__ import annotations

import pytest

from tests.compat.interpreter import fresh

#: What follows `bound`: each submodule is an attribute before it is imported, and is the module that an import gives.
CHECK = """
    import importlib, sys
    import spark_estimator.compat
    spark_estimator.compat.install()

    def attribute(dotted):
        root, *names = dotted.split(".")
        found = sys.modules[root]
        for name in names:
            found = getattr(found, name)
        return found

    def check(package, names):
        for name in names:
            old = f"{package}.{name}"
            found = attribute(old)
            assert importlib.import_module(old) is found is sys.modules[old], old
            assert found is sys.modules[found.__name__], old
"""

TORCH = "compression", "elastic", "elastic.sampler", "elastic.state", "functions", "mpi_ops", "optimizer"


def test_of_torch() -> None:
    fresh(
        CHECK
        + f"""
    import horovod.torch as hvd
    for heavy in ("pyspark", "lightning", "pytorch_lightning", "tensorflow", "keras", "pyarrow"):
        assert heavy not in sys.modules, heavy
    check("horovod.torch", {(*TORCH, "sync_batch_norm")})
    check("horovod", ["common", "common.elastic", "common.exceptions", "common.util", "common.process_sets", "runner"])

    for name in ("allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"):
        assert getattr(hvd.functions, name) is getattr(hvd, name), name
    collectives = ["allreduce_async_", "allgather", "broadcast_", "synchronize", "poll", "join", "barrier"]
    for name in (*collectives, "Average", "Sum", "Adasum", "Min", "Max", "Product", "rank", "size", "ProcessSet",
                 "Compression", "HorovodInternalError", "global_process_set"):
        assert getattr(hvd.mpi_ops, name) is getattr(hvd, name), name
    names = {{}}
    exec("from horovod.torch.mpi_ops import *", names)
    assert names["allreduce_async_"] is hvd.allreduce_async_
    names = {{}}
    exec("from horovod.torch.functions import *", names)
    assert names["broadcast_parameters"] is hvd.broadcast_parameters and "hvd" not in names
    assert hvd.mpi_ops.num_rank_is_power_2(4) and not hvd.mpi_ops.num_rank_is_power_2(6)
    from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
    assert (ProcessSet, global_process_set) == (hvd.ProcessSet, hvd.global_process_set)
    assert (add_process_set, remove_process_set) == (hvd.add_process_set, hvd.remove_process_set)
    """
    )


def test_of_torch_under_its_own_name() -> None:
    fresh(
        """
        import sys
        import spark_estimator.torch as hvd
        for name in ("mpi_ops", "functions", "compression", "optimizer", "sync_batch_norm", "elastic"):
            assert getattr(hvd, name) is sys.modules[f"spark_estimator.torch.{name}"], name
        assert "mpi_ops" not in hvd.__all__ and "functions" not in hvd.__all__
        """
    )


def test_of_tensorflow() -> None:
    pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")
    fresh(
        CHECK
        + """
    import horovod.tensorflow as hvd
    assert "spark_estimator.tensorflow.sync_batch_norm" not in sys.modules, "it loads Keras, when it is first asked for"
    check("horovod.tensorflow", ["compression", "elastic", "functions", "mpi_ops", "sync_batch_norm", "util"])
    for name in ("allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"):
        assert getattr(hvd.functions, name) is getattr(hvd, name), name
    for name in ("allreduce", "allgather", "broadcast", "Average", "Sum", "size_op", "rank",
                 "check_num_rank_power_of_2"):
        assert getattr(hvd.mpi_ops, name) is getattr(hvd, name), name
    assert hvd.mpi_ops._basics.size is hvd.size

    import tensorflow as tf
    assert hvd.util._executing_eagerly() and hvd._executing_eagerly is hvd.util._executing_eagerly
    with tf.Graph().as_default():
        assert not hvd.util._executing_eagerly()
    calls = []
    cached = hvd.util._cache(lambda *args: calls.append(args))
    cached(1), cached(1), cached(2)
    assert calls == [(1,), (2,)]
    assert int(hvd.util._make_subgraph(lambda x: x + 1)(tf.constant(1))) == 2
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    refs = hvd.vars_to_refs(variables)
    assert {refs: "hashable"} and hvd.refs_to_vars(refs)[0] is variables[0]
    assert hvd.refs_to_vars(refs)[1][0] is variables[1][0]
    """
    )


def test_of_keras() -> None:
    pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")
    fresh(
        CHECK
        + """
    import os
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import horovod.keras
    import horovod.tensorflow.keras
    check("horovod.keras", ["callbacks", "elastic"])
    check("horovod.tensorflow.keras", ["callbacks", "elastic"])
    check("horovod.tensorflow", ["functions", "mpi_ops", "util"])
    """
    )


def test_of_spark() -> None:
    pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")
    fresh(
        CHECK
        + """
    import horovod.spark
    check("horovod.spark", ["runner"])
    import horovod.spark.conf, horovod.spark.task, horovod.spark.common.constants, horovod.spark.data_loaders
    check("horovod.spark", ["conf", "task", "common", "common.constants", "data_loaders"])
    assert horovod.spark.task.get_available_devices() == []
    from horovod.runner.launch import run_commandline
    from horovod.runner.common.util.env import get_env_rank_and_size
    from horovod.common.basics import HorovodBasics
    import horovod.data, sparkdl
    assert sparkdl.__version__ == "2.2.0"
    """
    )
