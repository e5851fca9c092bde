"""The table of Horovod's, sparkdl's and petastorm's names and their targets here, as strings: it imports no target."""

from __future__ import annotations

from spark_estimator.compat.unavailable import UNAVAILABLE

#: Old module name -> the module of this package that it is an alias of.
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
    "horovod.tensorflow.keras.callbacks": "spark_estimator.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "spark_estimator.keras.elastic",
    "horovod.keras": "spark_estimator.keras",
    "horovod.keras.callbacks": "spark_estimator.keras.callbacks",
    "horovod.keras.elastic": "spark_estimator.keras.elastic",
    "horovod.common.basics": "spark_estimator.compat.basics",
    "horovod.common.elastic": "spark_estimator.elastic",
    "horovod.common.exceptions": "spark_estimator.compat.exceptions",
    "horovod.common.util": "spark_estimator.compat.build_questions",
    "horovod.data.data_loader_base": "spark_estimator.data.batch_loader",
    "horovod.runner.common.util.env": "spark_estimator.compat.rank_environment",
    "horovod.spark": "spark_estimator.spark",
    "horovod.spark.common.backend": "spark_estimator.spark.backend",
    "horovod.spark.common.constants": "spark_estimator.compat.spark_constants",
    "horovod.spark.common.store": "spark_estimator.store",
    "horovod.spark.conf": "spark_estimator.compat.spark_settings",
    "horovod.spark.lightning.legacy": "spark_estimator.estimators.lightning.legacy",
    "horovod.spark.runner": "spark_estimator.spark.runner",
    "petastorm.codecs": "spark_estimator.extensions.petastorm.codecs",
    "petastorm.predicates": "spark_estimator.extensions.petastorm.predicates",
    "petastorm.pytorch": "spark_estimator.extensions.petastorm.loader",
    "petastorm.reader": "spark_estimator.extensions.petastorm.reader",
    "petastorm.spark.spark_dataset_converter": "spark_estimator.extensions.petastorm.converter",
    "petastorm.tf_utils": "spark_estimator.extensions.petastorm.tf_datasets",
    "petastorm.transform": "spark_estimator.extensions.petastorm.transform",
    "petastorm.unischema": "spark_estimator.extensions.petastorm.unischema",
    "sparkdl.horovod.runner_base": "spark_estimator.runner",
}

#: Old package without a counterpart in this package -> its names, each with its target as "module:attribute".
PACKAGES: dict[str, dict[str, str]] = {
    "horovod": {"run": "spark_estimator.runner:run"},
    "horovod.common": {},
    "horovod.common.process_sets": {
        "ProcessSet": "spark_estimator.collectives.process_set:ProcessSet",
        "add_process_set": "spark_estimator.collectives.context:add_process_set",
        "global_process_set": "spark_estimator.collectives.process_set:global_process_set",
        "remove_process_set": "spark_estimator.collectives.context:remove_process_set",
    },
    "horovod.data": {
        "AsyncDataLoaderMixin": "spark_estimator.data.batch_loader:AsyncDataLoaderMixin",
        "BaseDataLoader": "spark_estimator.data.batch_loader:BaseDataLoader",
    },
    "horovod.runner": {"HorovodRunner": "spark_estimator.runner:HorovodRunner", "run": "spark_estimator.runner:run"},
    "horovod.runner.common": {},
    "horovod.runner.common.util": {},
    "horovod.runner.common.util.codec": {
        "dumps_base64": "spark_estimator.compat.launcher_answers:dumps_base64",
        "loads_base64": "spark_estimator.compat.launcher_answers:loads_base64",
    },
    "horovod.runner.common.util.secret": {"make_secret_key": "spark_estimator.compat.launcher_answers:make_secret_key"},
    "horovod.runner.js_run": {"is_jsrun_installed": "spark_estimator.compat.launcher_answers:is_jsrun_installed"},
    "horovod.runner.mpi_run": {
        "is_open_mpi": "spark_estimator.compat.launcher_answers:is_open_mpi",
        "mpi_available": "spark_estimator.compat.launcher_answers:mpi_available",
    },
    "horovod.runner.launch": {"run_commandline": "spark_estimator.launch.cli.main:main"},
    "horovod.spark.common": {},
    "horovod.spark.common.estimator": {
        "HorovodEstimator": "spark_estimator.estimators.protocol:HorovodEstimator",
        "HorovodModel": "spark_estimator.estimators.protocol:HorovodModel",
    },
    "horovod.spark.common.params": {
        "EstimatorParams": "spark_estimator.estimators.protocol:EstimatorParams",
        "ModelParams": "spark_estimator.estimators.protocol:ModelParams",
    },
    "horovod.spark.data_loaders": {},
    "horovod.spark.keras": {
        "KerasEstimator": "spark_estimator.estimators.keras.estimator:KerasEstimator",
        "KerasModel": "spark_estimator.estimators.keras.model:KerasModel",
    },
    "horovod.spark.keras.estimator": {
        "EstimatorParams": "spark_estimator.estimators.protocol:EstimatorParams",
        "KerasEstimator": "spark_estimator.estimators.keras.estimator:KerasEstimator",
        "KerasModel": "spark_estimator.estimators.keras.model:KerasModel",
    },
    "horovod.spark.lightning": {
        "TorchEstimator": "spark_estimator.estimators.lightning.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.lightning.model:TorchModel",
    },
    "horovod.spark.lightning.estimator": {
        "EstimatorParams": "spark_estimator.estimators.protocol:EstimatorParams",
        "MIN_PL_VERSION": "spark_estimator.lightning.flavours:MIN_PL_VERSION",
        "TorchEstimator": "spark_estimator.estimators.lightning.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.lightning.model:TorchModel",
    },
    "horovod.spark.task": {"get_available_devices": "spark_estimator.spark.backend:get_available_devices"},
    "horovod.spark.task.task_info": {"get_available_devices": "spark_estimator.spark.backend:get_available_devices"},
    "horovod.spark.torch": {
        "TorchEstimator": "spark_estimator.estimators.torch.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.torch.model:TorchModel",
    },
    "horovod.spark.torch.estimator": {
        "EstimatorParams": "spark_estimator.estimators.protocol:EstimatorParams",
        "TorchEstimator": "spark_estimator.estimators.torch.estimator:TorchEstimator",
        "TorchModel": "spark_estimator.estimators.torch.model:TorchModel",
    },
    "lightning_horovod": {"HorovodStrategy": "spark_estimator.lightning:AddOnStrategy"},
    "lightning_horovod.strategy": {"HorovodStrategy": "spark_estimator.lightning:AddOnStrategy"},
    "petastorm": {
        "NoDataAvailableError": "spark_estimator.errors:DataError",
        "TransformSpec": "spark_estimator.extensions.petastorm.transform:TransformSpec",
        "make_batch_reader": "spark_estimator.extensions.petastorm.reader:make_batch_reader",
        "make_reader": "spark_estimator.extensions.petastorm.reader:make_reader",
    },
    "petastorm.errors": {"NoDataAvailableError": "spark_estimator.errors:DataError"},
    "petastorm.etl": {},
    "petastorm.etl.dataset_metadata": {
        "PetastormMetadataError": "spark_estimator.errors:DataError",
        "PetastormMetadataGenerationError": "spark_estimator.errors:DataError",
    },
    "petastorm.spark": {
        "SparkDatasetConverter": "spark_estimator.extensions.petastorm.converter:SparkDatasetConverter",
        "make_spark_converter": "spark_estimator.extensions.petastorm.converter:make_spark_converter",
    },
    "sparkdl": {"HorovodRunner": "spark_estimator.runner:HorovodRunner"},
    "sparkdl.horovod": {"log_to_driver": "spark_estimator.observe.driver_log:log_to_driver"},
    "sparkdl.horovod.tensorflow": {},
    "sparkdl.horovod.tensorflow.keras": {"LogCallback": "spark_estimator.keras.log_callback:LogCallback"},
}

for _module in UNAVAILABLE:
    while _module and _module not in MODULES:
        PACKAGES.setdefault(_module, {})
        _module = _module.rpartition(".")[0]

#: ``__version__`` of the top-level packages, which clients compare: the releases whose API the aliases provide.
VERSIONS = {"horovod": "0.28.1", "lightning_horovod": "0.1.0", "petastorm": "0.13.1", "sparkdl": "2.2.0"}

#: Old name -> what to use instead. The longest matching name applies.
INSTEAD: dict[str, str] = {
    "horovod": "use `spark_estimator.torch` or `spark_estimator.tensorflow`",
    "horovod.keras": "use `spark_estimator.keras`",
    "horovod.mxnet": "MXNet is retired and is not supported",
    "horovod.ray": "Ray is not supported; use Ray's own trainers",
    "horovod.spark": "use `spark_estimator.spark`, or the estimators of `horovod.spark.torch`, `.lightning` or "
    "`.keras`",
    "horovod.tensorflow": "use `spark_estimator.tensorflow`",
    "horovod.tensorflow.keras": "use `spark_estimator.keras`",
    "horovod.torch": "use `spark_estimator.torch`",
    "lightning_horovod": "use `spark_estimator.lightning.HorovodStrategy`",
    "petastorm": "use `spark_estimator.data.petastorm`, which has petastorm's readers, loaders and converter",
    "sparkdl": "use `sparkdl.HorovodRunner`, `sparkdl.horovod.log_to_driver` or its Keras `LogCallback`",
}

#: Top-level names of the real Horovod, sparkdl and petastorm, which take precedence if they are installed.
ROOTS = frozenset(name.partition(".")[0] for name in PACKAGES)


def advise(old: str) -> str:
    """Return the replacement of a missing name `old` (dotted), and the available names of its package."""
    prefix = old
    while prefix and prefix not in INSTEAD:
        prefix = prefix.rpartition(".")[0]
    root = old.partition(".")[0]
    served = sorted(name for name in {*MODULES, *PACKAGES} if name.partition(".")[0] == root)
    parent, _, missing = old.rpartition(".")
    if parent in PACKAGES and parent not in ROOTS:
        # Perhaps ``from parent import missing``. The modules of all of Horovod would hide the answer.
        names = {name.rpartition(".")[2] for name in served if name.rpartition(".")[0] == parent}
        offered = ", ".join(sorted({*names, *PACKAGES[parent]}))
        return f"{INSTEAD[prefix]}; {parent} has no name {missing!r} either (available: {offered})"
    return f"{INSTEAD[prefix]} (available: {', '.join(served)})"
