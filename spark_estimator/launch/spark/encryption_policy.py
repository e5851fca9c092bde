"""Whether the ranks of a job in a Spark session encrypt what they send between hosts, and may write rows to disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.env import IN_MEMORY, SPOOL_VARIABLE, Settings
from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.spark_settings import ALLOW_UNENCRYPTED, ENCRYPTION
from spark_estimator.launch.spark.configuration import Configuration, is_true
from spark_estimator.security.encryption import Policy, check_encryption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK_ENCRYPTS_FILES = "spark.io.encryption.enabled"
# Each encrypts the traffic of executors, or, as spark.ssl.enabled, shows that the user wants connections encrypted.
_SPARK_ENCRYPTS = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)


def decide_encryption(spark: SparkSession) -> tuple[bool, str]:
    """Decide whether a job in this session encrypts its connections, and why, for people.

    Raises:
        PreflightError: the session's setting has another value.
        EncryptionUnavailableError: it would encrypt, and this host can't.
    """
    encrypted, reason = _decide(Configuration(spark))
    if encrypted:
        check_encryption()
    return encrypted, reason


def choose_spool_variables(spark: SparkSession) -> dict[str, str]:
    """Choose variables for workers whose hosts don't set them: rows stay in memory where Spark encrypts its files.

    Spark's key for its files does not reach the workers, and a file that is mapped into memory can't be decrypted.
    """
    return {SPOOL_VARIABLE: IN_MEMORY} if Configuration(spark).is_true(_SPARK_ENCRYPTS_FILES) else {}


def _decide(conf: Configuration) -> tuple[bool, str]:
    policy, source = _read_policy(conf)
    if policy is not Policy.AUTO:
        return policy is Policy.REQUIRE, source
    if conf.is_local:
        return False, "all ranks are on the driver's host"
    for name in _SPARK_ENCRYPTS:
        try:
            if is_true(conf.get_or_raise(name)):
                return True, f"{name} is true"
        except Exception as error:  # each kind of session has its own errors
            return True, f"this session doesn't show {name} ({type(error).__name__}), so Spark may encrypt its traffic"
    return False, "Spark's own traffic is not encrypted"


def _read_policy(conf: Configuration) -> tuple[Policy, str]:
    stated = conf.get(ENCRYPTION)
    if stated is not None and stated.strip():  # empty is not set, as for a variable
        try:
            return Policy(stated.strip().lower()), f"{ENCRYPTION} is {stated}"
        except ValueError:
            values = ", ".join(policy.value for policy in Policy)
            raise PreflightError(f"{ENCRYPTION}={stated!r}: expected one of {values}.") from None
    if conf.is_true(ALLOW_UNENCRYPTED):
        return Policy.OFF, f"{ALLOW_UNENCRYPTED} is true"
    policy = Policy(Settings.read().encryption)
    return policy, f"SPARK_ESTIMATOR_ENCRYPTION is {policy.value}"
