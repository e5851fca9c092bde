"""Names of Horovod and petastorm without a counterpart: importable, and a call raises an error with what to use."""

from __future__ import annotations

from typing import NoReturn

_READERS = (
    "an estimator's ranks read the DataFrame's rows themselves; for loaders of your own, train in a function, "
    "HorovodRunner(np=2).run(train, data=df), where data.loader(batch_size) makes batches of the rank's rows"
)
_PREPARED = (
    "fit() needs no files; for files, write the rows with df.write.parquet(path), and read a rank's share of them with "
    "spark_estimator.data.make_torch_dataloader(path, batch_size)"
)
_DATABRICKS = "look for DATABRICKS_RUNTIME_VERSION in os.environ"
_TRAINERS = "an estimator's ranks run this package's own training loop; override an estimator's methods instead"
_PICKLES = "pickle models with cloudpickle, or save them with save(path)"
_WINDOWS = (
    "readers give single rows or row groups; make windows of rows where the data set is written, for example with "
    "Spark's window functions"
)
_SAMPLING = "read the data sets one beside the other, and draw from their batches in the training loop"
_UNISCHEMA = (
    "data sets with a Unischema are read, and not written; write plain columns (arrays as array<float>, images as "
    "binary) with df.write.parquet(), and decode them in a TransformSpec"
)
_INDEXES = "petastorm's indexes of row groups are not read; use predicate or filters of the readers"
_LAUNCHERS = "use `horovodrun`, `horovod.run` or `horovod.spark.run`, which start the ranks"
_DATA_SERVICE = "the ranks do not share a tf.data service; shard the dataset with dataset.shard(hvd.size(), hvd.rank())"
_KERAS = "the estimators themselves serialize models of Keras"
_SAVED = "estimators and models have save(path) and load(path)"
_COLUMNS = "the estimators find, check and convert columns; use pyspark.sql.types, numpy and pyarrow"
_SETS = "keep the ProcessSet that hvd.add_process_set() returns"

_MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    _READERS: {
        "horovod.spark.common.datamodule": ("DataModule",),
        "horovod.spark.data_loaders.pytorch_data_loaders": (
            "PetastormBatchedDataLoader",
            "PytorchAsyncDataLoader",
            "PytorchDataLoader",
            "PytorchInfiniteAsyncDataLoader",
            "PytorchInfiniteDataLoader",
            "PytorchInmemAsyncDataLoader",
            "PytorchInmemDataLoader",
        ),
        "horovod.spark.keras.datamodule": ("NVTabularDataModule", "PetastormDataModule"),
        "horovod.spark.lightning.datamodule": ("PetastormDataModule",),
        "horovod.spark.torch.datamodule": ("NVTabularDataModule", "PetastormDataModule"),
    },
    _PREPARED: {
        "horovod.spark.common.cache": ("TrainingDataCache",),
        "horovod.spark.common.util": (
            "check_validation",
            "clear_training_cache",
            "get_dataset_properties",
            "get_simple_meta_from_parquet",
            "prepare_data",
        ),
    },
    _DATABRICKS: {"horovod.spark.common.util": ("is_databricks",)},
    _TRAINERS: {
        "horovod.spark.keras.remote": ("RemoteTrainer",),
        "horovod.spark.lightning.remote": ("RemoteTrainer",),
        "horovod.spark.torch.remote": ("RemoteTrainer",),
    },
    _PICKLES: {
        "horovod.spark.lightning.util": ("deserialize_fn", "is_module_available", "serialize_fn"),
        "horovod.spark.torch.util": ("deserialize_fn", "is_module_available", "save_into_bio", "serialize_fn"),
    },
    _KERAS: {
        "horovod.spark.keras.bare": ("save_bare_keras_optimizer", "load_bare_keras_optimizer"),
        "horovod.spark.keras.optimizer": (
            "deserialize_bare_keras_optimizer",
            "deserialize_tf_keras_optimizer",
            "serialize_bare_keras_optimizer",
            "serialize_tf_keras_optimizer",
        ),
        "horovod.spark.keras.tensorflow": ("save_tf_keras_optimizer", "load_tf_keras_optimizer"),
        "horovod.spark.keras.util": ("BareKerasUtil", "TFKerasUtil", "is_instance_of_bare_keras_model"),
    },
    _SAVED: {
        "horovod.spark.common.serialization": ("HorovodParamsReader", "HorovodParamsWriter"),
        "horovod.spark.keras.estimator": ("KerasEstimatorParamsReader", "KerasEstimatorParamsWriter"),
        "horovod.spark.torch.estimator": (
            "TorchEstimatorParamsReader",
            "TorchEstimatorParamsWritable",
            "TorchEstimatorParamsWriter",
        ),
    },
    _COLUMNS: {
        "horovod.spark.common.util": (
            "check_shape_compatibility",
            "data_type_to_numpy",
            "data_type_to_str",
            "get_output_cols",
            "get_spark_df_output_schema",
            "numpy_type_to_str",
            "pyarrow_to_spark_data_type",
            "spark_scalar_to_python_type",
            "to_list",
            "to_petastorm_fn",
        )
    },
    _SETS: {"horovod.common.process_sets": ("process_set_by_id", "process_sets", "setup", "update_process_sets")},
    _DATA_SERVICE: {
        "horovod.runner.common.service.compute_service": ("ComputeClient", "ComputeService"),
        "horovod.spark.tensorflow.compute_worker": ("main",),
        "horovod.tensorflow.data.compute_service": (
            "TfDataServiceConfig",
            "compute_worker_fn",
            "send_to_data_service",
            "tf_data_service",
        ),
        "horovod.tensorflow.data.compute_worker": ("main",),
    },
    _WINDOWS: {"petastorm.ngram": ("NGram",)},
    _SAMPLING: {"petastorm.weighted_sampling_reader": ("WeightedSamplingReader",)},
    _UNISCHEMA: {
        "petastorm.etl.dataset_metadata": (
            "get_schema",
            "get_schema_from_dataset_url",
            "infer_or_load_unischema",
            "load_row_groups",
            "materialize_dataset",
        ),
        "petastorm.spark_utils": ("dataset_as_rdd",),
    },
    _INDEXES: {
        "petastorm.etl.rowgroup_indexers": ("FieldNotNullIndexer", "SingleFieldIndexer"),
        "petastorm.etl.rowgroup_indexing": ("build_rowgroup_index",),
        "petastorm.selectors": (
            "IntersectIndexSelector",
            "RowGroupSelectorBase",
            "SingleIndexSelector",
            "UnionIndexSelector",
        ),
    },
    _LAUNCHERS: {
        "horovod.runner.common.util.config_parser": ("set_args_from_config", "set_env_from_args"),
        "horovod.runner.common.util.hosts": (
            "HostInfo",
            "SlotInfo",
            "get_host_assignments",
            "parse_host_files",
            "parse_hosts",
        ),
        "horovod.runner.common.util.network": ("BasicClient", "BasicService"),
        "horovod.runner.common.util.safe_shell_exec": ("execute",),
        "horovod.runner.common.util.settings": ("BaseSettings", "Settings"),
        "horovod.runner.common.util.timeout": ("Timeout", "TimeoutException"),
        "horovod.runner.common.util.tiny_shell_exec": ("execute",),
        "horovod.runner.driver.driver_service": ("HorovodRunDriverClient", "HorovodRunDriverService"),
        "horovod.runner.elastic.discovery": ("FixedHosts", "HostDiscovery", "HostDiscoveryScript", "HostManager"),
        "horovod.runner.elastic.driver": ("ElasticDriver",),
        "horovod.runner.elastic.settings": ("ElasticSettings",),
        "horovod.runner.elastic.worker": ("WorkerNotificationManager",),
        "horovod.runner.gloo_run": ("gloo_run", "gloo_run_elastic", "launch_gloo", "launch_gloo_elastic"),
        "horovod.runner.http.http_client": ("put_data_into_kvstore", "read_data_from_kvstore"),
        "horovod.runner.http.http_server": ("KVStoreServer", "RendezvousServer"),
        "horovod.runner.js_run": ("js_run",),
        "horovod.runner.launch": ("check_build", "parse_args", "run_controller"),
        "horovod.runner.mpi_run": ("mpi_run",),
        "horovod.runner.util.cache": ("Cache", "use_cache"),
        "horovod.runner.util.lsf": ("LSFUtils",),
        "horovod.runner.util.network": ("filter_local_addresses", "get_driver_ip", "get_local_host_addresses"),
        "horovod.runner.util.remote": ("get_remote_command", "get_ssh_command"),
        "horovod.runner.util.threads": ("execute_function_multithreaded", "in_thread", "on_event"),
        "horovod.spark.driver.driver_service": ("SparkDriverClient", "SparkDriverService"),
        "horovod.spark.driver.host_discovery": ("SparkDriverHostDiscovery",),
        "horovod.spark.driver.rendezvous": ("SparkRendezvousServer",),
        "horovod.spark.gloo_run": ("gloo_run", "gloo_run_elastic"),
        "horovod.spark.mpi_run": ("mpi_run",),
        "horovod.spark.task.task_service": ("SparkTaskClient", "SparkTaskService"),
    },
}

#: Old module -> its names without a counterpart, each with what to use instead.
UNAVAILABLE: dict[str, dict[str, str]] = {}
for _sentence, _modules in _MODULES.items():
    for _module, _names in _modules.items():
        UNAVAILABLE.setdefault(_module, {}).update(dict.fromkeys(_names, _sentence))


def make_placeholder(old: str, sentence: str) -> type:
    """Make a class under an old name, so that programs can import it, and derive from it; a call of it raises.

    Args:
        old: the dotted name.
        sentence: what to use instead.
    """
    module, _, name = old.rpartition(".")

    def refuse(cls: type, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"{old} is not available: {sentence}.")

    return type(name, (), {"__new__": refuse, "__module__": module, "__doc__": f"Not available: {sentence}."})
