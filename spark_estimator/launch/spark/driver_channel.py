"""The driver's end of the driver channel of a job on Spark: its address, and what supervisors send and receive."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_estimator._native import require_engine
from spark_estimator.env import Settings
from spark_estimator.errors import NativeLibraryError, PreflightError
from spark_estimator.launch.job.events import Event
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.spec import ChannelAddress, JobSpec
from spark_estimator.launch.spark.configuration import Configuration
from spark_estimator.launch.spark.encryption_policy import decide_encryption
from spark_estimator.launch.spark.rank_events import RankEvents
from spark_estimator.launch.spark.rank_registration import DriverRegistration, RankRegistration
from spark_estimator.log import get_logger
from spark_estimator.observe import frames
from spark_estimator.observe.driver_address import find_driver_address
from spark_estimator.observe.driver_server import DriverServer
from spark_estimator.observe.silence import choose_loss_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

_OF_LOSSES = (frames.SILENT, frames.HEARD, frames.GONE)


def address_for_executors(spark: SparkSession, needed_for: str = "") -> str | None:
    """Return an address of this host at which executors should reach it; None: there is none, or the user wants none.

    Raises PreflightError: the same, for a kind of job that can't run without; `needed_for`: its name, or ''.
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
        if decide_encryption(spark)[0]:
            require_engine()
        return find_driver_address(host)
    except (OSError, NativeLibraryError) as error:
        if not needed_for:
            _log.info("no driver channel: %s", error)
            return None
        raise PreflightError(
            f"the executors of {needed_for} must connect to this process, but {error}: set spark.driver.host to a name "
            "or address that they can reach."
        ) from error


class DriverChannel:
    """The connections of the supervisors of one start of all ranks.

    Args:
        barrier: whether all tasks start together. If not, the job can't do without the channel; otherwise it has none
            where the executors can't reach this process.
        put: called with each event of a rank, in the channel's thread.
        is_running: whether the job still runs. Once it is being ended, its ranks vanish as they should.

    Attributes:
        registration: of the supervisors.
        ranks: what the supervisors have reported.

    Raises:
        PreflightError: there is no channel, and the job needs it.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: JobSpec,
        *,
        barrier: bool,
        put: Callable[[Event], None],
        is_running: Callable[[], bool],
    ) -> None:
        self.registration = (RankRegistration if barrier else DriverRegistration)(job.size, self._answer)
        self.ranks = RankEvents()
        self._put = put
        self._is_running = is_running
        self._server: DriverServer | None = None
        address = address_for_executors(spark, "" if barrier else "a job without a barrier stage")
        if address is None:
            return
        try:
            self._server = DriverServer(
                address,
                job.job_id,
                job.size,
                self._receive,
                choose_loss_seconds(Settings.read()),
                encrypted=job.encrypted,
                approve=self.registration.approve,
            )
        except OSError as error:
            if not barrier:
                raise PreflightError(f"this process can't listen for its executors at {address}: {error}") from error
            _log.info("no driver channel: %s", error)

    @property
    def address(self) -> ChannelAddress | None:
        """Return where supervisors connect; None: the job has no channel."""
        server = self._server
        return None if server is None else ChannelAddress(server.address, server.port, server.token)

    def count_connected(self) -> int:
        """Return how many supervisors are connected."""
        return 0 if self._server is None else self._server.connected

    def find_repeated(self) -> list[FailureReport]:
        """Return the reports on ranks that have ended, and whose tasks Spark has started again."""
        return [
            self.ranks.report_repeated(number) for number in self.registration.find_repeated(self.count_connected())
        ]

    def stop(self, reason: str) -> None:
        """Have every connected supervisor end its worker, also those that connect later. Idempotent."""
        if self._server is not None:
            self._server.stop(reason)

    def wait_for_disconnection(self, patience: timedelta) -> None:
        """Wait until all supervisors have sent their last lines and reports, and have disconnected."""
        deadline = time.monotonic() + patience.total_seconds()
        while self.count_connected() and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """Disconnect all supervisors."""
        if self._server is not None:
            self._server.close()

    def _receive(self, partition: int, frame: dict[str, Any]) -> None:
        """Take what a supervisor sends; in the server's thread."""
        if frame["kind"] == frames.FACTS:
            self.registration.add(partition, frame["facts"])
        elif frame["kind"] == frames.GATHER:
            self.registration.give_up(f"partition {partition} could not reach the driver in time")
        elif frame["kind"] != frames.GONE or not self.registration.remove(partition):
            event = self.ranks.take(partition, frame)
            if event is not None and (frame["kind"] not in _OF_LOSSES or self._is_running()):
                self._put(event)

    def _answer(self, partition: int, kind: str, fields: dict[str, Any]) -> None:
        if self._server is not None:
            self._server.send(partition, kind, fields)
