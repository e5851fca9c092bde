"""`HorovodRunner`: Databricks' name for running a function on several ranks, unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from spark_estimator.errors import PythonEnvironmentError
from spark_estimator.observe.driver_log import print_line

_VERBOSITIES = ("log_callback_only", "all")
# A job of more ranks than that is a mistake in the argument, not a plan.
_MOST_RANKS = 10_000


class HorovodRunner:
    """Runs a function on several ranks that can use ``hvd`` collectives, and returns rank 0's value.

    Args:
        np: number of ranks. Positive: as many Spark tasks, started together in the current Spark session (one is
            created for
            local use where there is none). Negative: ``-np`` processes on this machine, without Spark; good for a
            first try.
            0: all slots of the session; deprecated, as in Databricks.
        driver_log_verbosity: "all" prints every rank's stdout and stderr here; "log_callback_only" (the default) only
            what
            ranks give to `log_to_driver`, and leaves the rest to the executors' logs. With a negative np everything is
            printed.

    Attributes:
        num_processor: `np` as it was given.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise TypeError(f"np is the number of ranks, a whole number; it was {np!r} of type {type(np).__name__}.")
        if abs(np) > _MOST_RANKS:
            raise ValueError(f"np={np} ranks: more than {_MOST_RANKS} are not supported.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise ValueError(f"driver_log_verbosity is one of {_VERBOSITIES}; it was {driver_log_verbosity!r}.")
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Calls ``main(**kwargs)`` on every rank.

        The function and its arguments travel by cloudpickle, together with what they use of the notebook or script. In
        them, ``import horovod.torch as hvd`` works as it is, also where Horovod is not installed.

        Returns:
            What `main` returned on rank 0; at most 64 MiB when pickled.

        Raises:
            PreflightError: the job was refused before it started; the text says what to change.
            WorkerFailedError: a rank failed; its traceback comes first, as the cause.
            ResultError: the value of rank 0 could not be brought back.
        """
        if not callable(main):
            raise TypeError(f"run() takes the function to run on every rank; it was given {main!r}.")
        if self.num_processor < 0:
            from spark_estimator.launch.local import run_local

            return run_local(main, -self.num_processor, kwargs=kwargs)[0]
        from spark_estimator.launch.slots import all_slots, check_encryption, check_session, require_slots

        try:
            from spark_estimator.launch.spark import run_on_spark
            from spark_estimator.launch.spark_session import session_for
        except ModuleNotFoundError as error:
            raise PythonEnvironmentError(
                f"HorovodRunner(np={self.num_processor}) runs in Spark, but there is no module {error.name!r} here: "
                "pip install 'spark-estimator[spark]', or use a negative np for processes on this machine."
            ) from error

        spark = session_for(self.num_processor)
        check_session(spark)
        check_encryption(spark)
        size = self.num_processor
        if size == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated: say how many ranks, for example np=2.",
                DeprecationWarning,
                stacklevel=2,
            )
            size = all_slots(spark)
        else:
            require_slots(spark, size)
        show_line = print_line if self.driver_log_verbosity == "all" else None
        return run_on_spark(spark, main, size, kwargs=kwargs, show_line=show_line)[0]
