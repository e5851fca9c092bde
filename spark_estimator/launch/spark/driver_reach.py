"""The address at which the driver listens for the tasks of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_estimator.env import Settings
from spark_estimator.errors import PreflightError
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.log import logger
from spark_estimator.observe.driver_address import driver_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logger(__name__)


def address_for_executors(spark: SparkSession, needed_for: str = "") -> str | None:
    """An address of this host at which the executors of a session should reach it.

    Args:
        needed_for: a kind of job that can't run without: ``an elastic job``; '' for one that can.

    Returns:
        None when there is none, or the user wants none.

    Raises:
        PreflightError: the same, and it is needed.
    """
    if not Settings.read().driver_channel:
        if not needed_for:
            return None
        raise PreflightError(
            f"SPARK_ESTIMATOR_DRIVER_CHANNEL is 0, but {needed_for} needs the driver channel: unset it, or start a job "
            "of a fixed size in a session with spark.dynamicAllocation.enabled=false."
        )
    host = Configuration(spark).get("spark.driver.host") or ""
    try:
        return driver_address(host)
    except OSError as error:
        if not needed_for:
            _log.info("no driver channel: %s", error)
            return None
        raise PreflightError(
            f"the executors of {needed_for} must connect to this process, but {error}: set spark.driver.host to a name "
            "or address that they can reach."
        ) from error
