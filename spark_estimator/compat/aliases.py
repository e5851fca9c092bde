"""The one table of old names and of the names that they lead to; strings only, so that reading it imports nothing."""

from __future__ import annotations

#: Old module -> the module that it is.
MODULES: dict[str, str] = {
    "horovod.torch": "spark_estimator.torch",
    "horovod.torch.mpi_ops": "spark_estimator.torch.mpi_ops",
    "horovod.torch.functions": "spark_estimator.torch",
    "horovod.torch.compression": "spark_estimator.torch.compression",
    "horovod.torch.optimizer": "spark_estimator.torch.optimizer",
    "horovod.torch.sync_batch_norm": "spark_estimator.torch.sync_batch_norm",
    "horovod.torch.elastic": "spark_estimator.torch.elastic",
    "horovod.torch.elastic.state": "spark_estimator.torch.elastic.state",
    "horovod.torch.elastic.sampler": "spark_estimator.torch.elastic.sampler",
    "horovod.common.elastic": "spark_estimator.elastic",
    "horovod.common.exceptions": "spark_estimator.errors",
    "horovod.common.util": "spark_estimator.compat.build_questions",
    "horovod.runner": "spark_estimator.runner",
    "horovod.spark": "spark_estimator.spark",
    "horovod.spark.common.backend": "spark_estimator.spark.backend",
    "horovod.spark.common.store": "spark_estimator.store",
    "horovod.spark.runner": "spark_estimator.spark.runner",
    "sparkdl.horovod.runner_base": "spark_estimator.runner",
}

#: Old package that only holds others together -> its own names, each as "module:attribute".
PACKAGES: dict[str, dict[str, str]] = {
    "horovod": {"run": "spark_estimator.runner:run"},
    "horovod.common": {},
    "horovod.spark.common": {},
    "horovod.spark.torch": {
        "TorchEstimator": "spark_estimator.estimators.torch_estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.torch_model:TorchModel",
    },
    "sparkdl": {"HorovodRunner": "spark_estimator.runner:HorovodRunner"},
    "sparkdl.horovod": {"log_to_driver": "spark_estimator.observe.driver_log:log_to_driver"},
}

#: What scripts compare ``horovod.__version__`` with: the release whose surface is served.
HOROVOD_VERSION = "0.28.1"

#: Old name -> what to write instead. The longest name that fits gives the advice.
INSTEAD: dict[str, str] = {
    "horovod": "see `spark_estimator.torch` for what is offered",
    "horovod.keras": "the Keras binding is not there yet",
    "horovod.mxnet": "MXNet is retired and will not be served",
    "horovod.ray": "Ray is out of scope; use Ray's own trainers there",
    "horovod.spark": "see `spark_estimator.spark` for what is offered; of estimators, `horovod.spark.torch`",
    "horovod.tensorflow": "the TensorFlow binding is not there yet",
    "horovod.torch": "see `spark_estimator.torch` for what is offered",
    "sparkdl": "`sparkdl.HorovodRunner` and `sparkdl.horovod.log_to_driver` are served",
    "sparkdl.horovod.tensorflow": "the TensorFlow binding is not there yet; `sparkdl.horovod.log_to_driver` is served",
}

#: Top-level names that belong to somebody else when they are really installed.
ROOTS = frozenset(name.partition(".")[0] for name in PACKAGES)


def advice(old: str) -> str:
    """What to write in place of an old name, and which of its family are served; `old` is dotted."""
    known = old
    while known and known not in INSTEAD:
        known = known.rpartition(".")[0]
    root = old.partition(".")[0]
    served = sorted(name for name in {*MODULES, *PACKAGES} if name.partition(".")[0] == root)
    return f"{INSTEAD[known]} (served: {', '.join(served)})"
