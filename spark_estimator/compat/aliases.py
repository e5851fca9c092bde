"""The one table of old names and of the names that they lead to; strings only, so that reading it imports nothing."""

from __future__ import annotations

#: Old module -> the module that it is.
MODULES: dict[str, str] = {
    "horovod.torch": "spark_estimator.torch",
    "horovod.torch.mpi_ops": "spark_estimator.torch.mpi_ops",
    "horovod.torch.functions": "spark_estimator.torch.functions",
    "horovod.torch.compression": "spark_estimator.torch.compression",
    "horovod.torch.optimizer": "spark_estimator.torch.optimizer",
    "horovod.torch.sync_batch_norm": "spark_estimator.torch.sync_batch_norm",
    "horovod.torch.elastic": "spark_estimator.torch.elastic",
    "horovod.torch.elastic.state": "spark_estimator.torch.elastic.state",
    "horovod.torch.elastic.sampler": "spark_estimator.torch.elastic.sampler",
    "horovod.tensorflow": "spark_estimator.tensorflow",
    "horovod.tensorflow.compression": "spark_estimator.tensorflow.compression",
    "horovod.tensorflow.elastic": "spark_estimator.tensorflow.elastic",
    "horovod.tensorflow.functions": "spark_estimator.tensorflow.functions",
    "horovod.tensorflow.mpi_ops": "spark_estimator.tensorflow.mpi_ops",
    "horovod.tensorflow.sync_batch_norm": "spark_estimator.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util": "spark_estimator.tensorflow.graph_modes",
    "horovod.tensorflow.gradient_aggregation": "spark_estimator.tensorflow.aggregation",
    "horovod.tensorflow.gradient_aggregation_eager": "spark_estimator.tensorflow.aggregation",
    "horovod.tensorflow.keras": "spark_estimator.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "spark_estimator.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "spark_estimator.keras.elastic",
    "horovod.keras": "spark_estimator.keras",
    "horovod.keras.callbacks": "spark_estimator.keras.callbacks",
    "horovod.keras.elastic": "spark_estimator.keras.elastic",
    "horovod.common.elastic": "spark_estimator.elastic",
    "horovod.common.exceptions": "spark_estimator.errors",
    "horovod.common.util": "spark_estimator.compat.build_questions",
    "horovod.runner": "spark_estimator.runner",
    "horovod.spark": "spark_estimator.spark",
    "horovod.spark.common.backend": "spark_estimator.spark.backend",
    "horovod.spark.common.store": "spark_estimator.store",
    "horovod.spark.lightning.legacy": "spark_estimator.estimators.lightning.legacy",
    "horovod.spark.runner": "spark_estimator.spark.runner",
    "sparkdl.horovod.runner_base": "spark_estimator.runner",
}

#: Old package that only holds others together -> its own names, each as "module:attribute".
PACKAGES: dict[str, dict[str, str]] = {
    "horovod": {"run": "spark_estimator.runner:run"},
    "horovod.common": {},
    "horovod.common.process_sets": {
        "ProcessSet": "spark_estimator.collectives.process_set:ProcessSet",
        "add_process_set": "spark_estimator.collectives.context:add_process_set",
        "global_process_set": "spark_estimator.collectives.process_set:global_process_set",
        "remove_process_set": "spark_estimator.collectives.context:remove_process_set",
    },
    "horovod.spark.common": {},
    "horovod.spark.keras": {
        "KerasEstimator": "spark_estimator.estimators.keras.estimator:KerasEstimator",
        "KerasModel": "spark_estimator.estimators.keras.model:KerasModel",
    },
    "horovod.spark.keras.estimator": {
        "KerasEstimator": "spark_estimator.estimators.keras.estimator:KerasEstimator",
        "KerasModel": "spark_estimator.estimators.keras.model:KerasModel",
    },
    "horovod.spark.lightning": {
        "TorchEstimator": "spark_estimator.estimators.lightning.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.lightning.model:TorchModel",
    },
    "horovod.spark.lightning.estimator": {
        "MIN_PL_VERSION": "spark_estimator.lightning.flavours:MIN_PL_VERSION",
        "TorchEstimator": "spark_estimator.estimators.lightning.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.lightning.model:TorchModel",
    },
    "horovod.spark.torch": {
        "TorchEstimator": "spark_estimator.estimators.torch.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.torch.model:TorchModel",
    },
    "horovod.spark.torch.estimator": {
        "TorchEstimator": "spark_estimator.estimators.torch.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.torch.model:TorchModel",
    },
    "sparkdl": {"HorovodRunner": "spark_estimator.runner:HorovodRunner"},
    "sparkdl.horovod": {"log_to_driver": "spark_estimator.observe.driver_log:log_to_driver"},
    "sparkdl.horovod.tensorflow": {},
    "sparkdl.horovod.tensorflow.keras": {"LogCallback": "spark_estimator.keras.log_callback:LogCallback"},
}

#: What scripts compare ``horovod.__version__`` with: the release whose surface is served.
HOROVOD_VERSION = "0.28.1"

#: Old name -> what to write instead. The longest name that fits gives the advice.
INSTEAD: dict[str, str] = {
    "horovod": "see `spark_estimator.torch` and `spark_estimator.tensorflow` for what is offered",
    "horovod.keras": "see `spark_estimator.keras` for what is offered",
    "horovod.mxnet": "MXNet is retired and will not be served",
    "horovod.ray": "Ray is out of scope; use Ray's own trainers there",
    "horovod.spark": "see `spark_estimator.spark` for what is offered; of estimators, `horovod.spark.torch`, "
    "`.lightning` and `.keras`",
    "horovod.tensorflow": "see `spark_estimator.tensorflow` for what is offered",
    "horovod.tensorflow.keras": "see `spark_estimator.keras` for what is offered",
    "horovod.torch": "see `spark_estimator.torch` for what is offered",
    "sparkdl": "`sparkdl.HorovodRunner`, `sparkdl.horovod.log_to_driver` and its Keras `LogCallback` are served",
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
