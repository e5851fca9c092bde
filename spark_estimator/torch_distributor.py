"""`TorchDistributor`: PySpark's name and arguments for a function or a script of PyTorch's, on this package's ranks."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.job.script import Script

_SSL_CONF = "pytorch.spark.distributor.ignoreSsl"


class TorchDistributor:
    """Runs a function or a script in processes that ``torch.distributed.init_process_group()`` joins without set-up.

    Args:
        num_processes: number of ranks.
        local_mode: True: processes on the driver; False: Spark tasks that start together.
        use_gpu: True demands GPUs: on the driver in local mode, where no more processes start than it has; else one for
            each task (``spark.task.resource.gpu.amount``).
        _ssl_conf: no effect. Ranks encrypt what they send where Spark encrypts its traffic.

    Raises:
        ValueError: `num_processes` is less than 1.
        PreflightError: a RuntimeError: `use_gpu` is set, and the driver has no GPU.
    """

    def __init__(
        self, num_processes: int = 1, local_mode: bool = True, use_gpu: bool = True, _ssl_conf: str = _SSL_CONF
    ) -> None:
        if type(num_processes) is not int or num_processes <= 0:
            raise ValueError(f"num_processes has to be a positive integer; got {num_processes!r}.")
        self.num_processes = num_processes
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        if local_mode and use_gpu:
            self._limit_to_gpus()

    def run(self, train_object: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Call ``train_object(*args, **kwargs)`` on every rank, or run the script of that path with `args`.

        ``data=df``, a DataFrame, is as in ``HorovodRunner.run``; with `local_mode` as there with a negative np.

        Returns:
            What the function returned on rank 0; None for a script.

        Raises:
            ValueError: keyword arguments for a script.
            Others as ``HorovodRunner.run``.
        """
        if isinstance(train_object, (str, os.PathLike)):
            if kwargs:
                raise ValueError(
                    f"run({os.fspath(train_object)!r}): a script takes no keyword arguments; got {sorted(kwargs)}. "
                    "Pass them as words, such as '--name=value'."
                )
            train_object, args = Script(train_object, args), ()
        caller = f"TorchDistributor(num_processes={self.num_processes})"
        rows = None
        errors: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if hasattr(kwargs.get("data"), "sparkSession"):
            from spark_estimator.frame_share import share_frame
            from spark_estimator.launch.spark.errors import raise_task_errors

            errors = raise_task_errors()
            kwargs, rows = share_frame(train_object, args, kwargs, f"{caller}.run", on_spark=not self.local_mode)
        options = JobOptions(args=args, kwargs=kwargs)
        if self.local_mode:
            from spark_estimator.launch.local import run_local

            with errors:
                return run_local(train_object, self.num_processes, options)[0]
        from spark_estimator.launch.spark.entry import run_in_session

        with errors:
            return run_in_session(train_object, self._choose_size, options, caller=caller, rows=rows)[0]

    def _limit_to_gpus(self) -> None:
        from spark_estimator.launch.job.gpus import find_task_gpus

        gpus = len(find_task_gpus((), os.environ).there)
        if gpus == 0:
            raise PreflightError(
                f"TorchDistributor(use_gpu=True, local_mode=True): the driver on {socket.gethostname()} has no GPU. "
                "Pass use_gpu=False to train on CPUs."
            )
        if self.num_processes > gpus:
            warnings.warn(
                f"num_processes={self.num_processes} is more than the {gpus} GPUs of the driver; {gpus} processes are "
                "started.",
                stacklevel=3,
            )
            self.num_processes = gpus

    def _choose_size(self, spark: Any) -> int:
        from spark_estimator.launch.spark.configuration import Configuration, get_gpus_per_rank
        from spark_estimator.launch.spark.slots import require_slots

        if self.use_gpu and not get_gpus_per_rank(Configuration(spark)):
            raise PreflightError(
                "TorchDistributor(use_gpu=True): spark.task.resource.gpu.amount is not set, so tasks get no "
                "GPU. Set it, or pass use_gpu=False."
            )
        require_slots(spark, self.num_processes, size_word="num_processes")
        return self.num_processes
