"""The settings of a Spark session that are this package's own, in one table: names, defaults and effects."""

from __future__ import annotations

from dataclasses import dataclass

GPUS_PER_RANK = "spark.spark_estimator.gpusPerRank"
ENCRYPTION = "spark.spark_estimator.encryption"
ALLOW_UNENCRYPTED = "spark.spark_estimator.allowUnencrypted"
BARRIER = "spark.spark_estimator.barrier"


@dataclass(frozen=True)
class SparkSetting:
    """One setting. `default`: what applies where the setting is not set; `effect`: what it does."""

    default: str
    effect: str


#: Every ``spark.spark_estimator.*`` setting by its name. Each can also be set while the session runs.
SETTINGS = {
    GPUS_PER_RANK: SparkSetting(
        "the value of spark.task.resource.gpu.amount; without it, 1 where spark.executor.resource.gpu.amount is set, "
        "else 0",
        "the number of GPUs of each rank, or a fraction of one GPU that ranks share; 0: ranks see no GPU. Ignored in "
        "local mode. On Spark 3 a value that differs from spark.task.resource.gpu.amount is refused.",
    ),
    BARRIER: SparkSetting(
        "false where spark.dynamicAllocation.enabled is true, else true",
        "true: the ranks of a job start in a barrier stage; false: each rank starts when there is a slot for it, and "
        "waits for the others. Set it to false on a cluster that adds workers when tasks wait for them and does not "
        "use Spark's dynamic allocation.",
    ),
    ENCRYPTION: SparkSetting(
        "the value of SPARK_ESTIMATOR_ENCRYPTION",
        "auto: ranks encrypt what they send between hosts where Spark encrypts its own traffic "
        "(spark.network.crypto.enabled, spark.authenticate.enableSaslEncryption, spark.ssl.enabled or "
        "spark.ssl.rpc.enabled), or doesn't show these settings; require: always; off: never",
    ),
    ALLOW_UNENCRYPTED: SparkSetting("false", f"true: as {ENCRYPTION}=off, of which it is the older name"),
}
