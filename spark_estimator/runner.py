"""The two classic names for running a function on several ranks: Databricks' `HorovodRunner` and Horovod's `run`."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.attempts import Limits
from spark_estimator.observe.driver_log import print_line

if TYPE_CHECKING:
    from spark_estimator.elastic.rounds import Terms

_VERBOSITIES = ("log_callback_only", "all")
# A job of more ranks than that is a mistake in the argument, not a plan.
_MOST_RANKS = 10_000


class HorovodRunner:
    """Runs a function on several ranks that can use ``hvd`` collectives, and returns rank 0's value.

    Args:
        np: number of ranks. Positive: so many Spark tasks, which start together in the current Spark session; without
            a session, a local one is created. Negative: ``-np`` processes on this machine, without Spark. 0: all slots
            of the session; deprecated, as in Databricks.
        driver_log_verbosity: "all" prints every rank's stdout and stderr on the driver. "log_callback_only" (the
            default) prints only what ranks pass to `log_to_driver`; the rest is in the executors' logs. A negative np
            prints everything. Where everything is printed, a terminal or a notebook also shows a status line.
        max_restarts: how often a failed job restarts as a whole after a rank died or raised, or an executor was lost;
            ``spark_estimator.launch.job.attempts`` says which failures are retried. The function finds the number of
            the attempt, from 1, in the variable `SPARK_ESTIMATOR_ATTEMPT`.
        timeout: seconds until `run` ends the ranks, including the wait for slots and all attempts.

    Attributes:
        num_processor: `np` as it was given.
    """

    def __init__(
        self,
        *,
        np: int,
        driver_log_verbosity: str = "log_callback_only",
        max_restarts: int = 0,
        timeout: float | None = None,
    ) -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise TypeError(f"np is the number of ranks, a whole number; it was {np!r} of type {type(np).__name__}.")
        if abs(np) > _MOST_RANKS:
            raise ValueError(f"np={np} ranks: more than {_MOST_RANKS} are not supported.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise ValueError(f"driver_log_verbosity is one of {_VERBOSITIES}; it was {driver_log_verbosity!r}.")
        self._limits = Limits.checked(max_restarts, timeout)
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
            JobTimeoutError: it took longer than `timeout`.
            JobCancelledError: somebody cancelled it in Spark.
        """
        if self.num_processor < 0:
            from spark_estimator.launch.local import run_local

            return run_local(main, -self.num_processor, kwargs=kwargs, limits=self._limits)[0]
        from spark_estimator.launch.spark.entry import run_in_session
        from spark_estimator.launch.spark.slots import all_slots

        if self.num_processor == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated: say how many ranks, for example np=2.",
                DeprecationWarning,
                stacklevel=2,
            )
        return run_in_session(
            main,
            self.num_processor or all_slots,
            caller=f"HorovodRunner(np={self.num_processor})",
            size_word="np",
            kwargs=kwargs,
            show_line=print_line if self.driver_log_verbosity == "all" else None,
            show_status=self.driver_log_verbosity == "all",
            limits=self._limits,
        )[0]


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Calls ``func(*args, **kwargs)`` on `num_proc` ranks, processes of this host or of several: `horovod.run`.

    Args:
        func: travels by cloudpickle, with what it uses of the notebook or script; so do its arguments.
        num_proc: number of ranks.
        min_num_proc, max_num_proc: either makes the job elastic: it goes on with no fewer than `min_num_proc` ranks
            (default: `num_proc`) when it loses some; with `max_num_proc`, new processes take their place, and it grows
            as far as there are slots. `func` then uses `elastic.run`.
        reset_limit: elastic: how often the job may be made of other ranks.
        hosts, hostfile: ``"host:slots,host:slots"``, or a file with lines ``host slots=n``. Ranks fill the hosts in
            this order; those of other hosts are started over ssh, see ``launch.ssh``. Without them this host has as
            many slots as are asked for.
        start_timeout: seconds that ranks wait for one another in ``init()``; None: `HOROVOD_START_TIMEOUT`, 30 by
            default.
        output_filename: a folder; each rank's output is also written to ``rank.N/stdout`` and ``stderr`` in it.
        verbose: says what is started; 0: not even a status line is shown on a terminal or in a notebook.
        ssh_port, ssh_identity_file: of other hosts; by default as ssh's configuration says.
        network_interfaces: names with commas between them; ranks of several hosts talk over the first that each has.
        executable: the Python of other hosts; by default at the path that it has here.
        host_discovery_script: a command that prints a line ``host:slots`` for each host; the job is elastic then. It is
            asked before the start, and each second; ranks come to new slots, and leave those that are gone.
        slots: of a host that the script names without a number.
        cooldown_range: two numbers of seconds: a host that has failed is used again after the first of them, then twice
            as many, and at most the second. None: it is not used again.
        disable_cache, use_gloo, use_mpi, mpi_args: without effect here; a warning says why.
        np, min_np, max_np, network_interface: deprecated names of num_proc, min_num_proc, max_num_proc,
            network_interfaces.

    Returns:
        What `func` returned on each rank, in rank order; at most 64 MiB each when pickled. Of an elastic job, what it
        returned on those that there were in the end.

    Raises:
        PreflightError: the job was refused before it started; the text says what to change.
        WorkerFailedError: a rank failed; its traceback comes first, as the cause.
        ResultError: a rank's value could not be brought back.
    """
    from spark_estimator.env import Settings
    from spark_estimator.launch.cli import obsolete
    from spark_estimator.launch.cli.flags import cooldown_of
    from spark_estimator.launch.elastic.job_entry import print_on_stderr, run_elastic_local
    from spark_estimator.launch.local import run_local
    from spark_estimator.launch.ssh.command import SshOptions
    from spark_estimator.launch.ssh.job import run_function_on_hosts
    from spark_estimator.launch.ssh.where import find_hosts
    from spark_estimator.launch.worker.output import OutputFiles

    num_proc = obsolete.renamed("np", np, "num_proc", num_proc, default=1)
    min_num_proc = obsolete.renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = obsolete.renamed("max_np", max_np, "max_num_proc", max_num_proc)
    if type(num_proc) is not int or not 0 < num_proc <= _MOST_RANKS:
        raise ValueError(f"num_proc is the number of ranks, from 1 to {_MOST_RANKS}; it was {num_proc!r}.")
    network_interfaces = obsolete.renamed(
        "network_interface", network_interface, "network_interfaces", network_interfaces
    )
    environment = {} if start_timeout is None else {"HOROVOD_START_TIMEOUT": str(start_timeout)}
    settings = Settings.read({**os.environ, **environment})  # refuses a value that the ranks could not use

    def read_options(needed: bool) -> SshOptions:
        return SshOptions.read(
            settings,
            port=ssh_port,
            identity_file=ssh_identity_file,
            interfaces=network_interfaces,
            python=executable,
            needed=needed,
        )

    terms = _terms(num_proc, min_num_proc, max_num_proc, reset_limit, host_discovery_script)
    cooldown = cooldown_of(cooldown_range)
    try:
        where = find_hosts(
            num_proc,
            read_options,
            print_on_stderr,
            hosts=hosts,
            hostfile=hostfile,
            script=host_discovery_script,
            slots_per_host=None if host_discovery_script is None else slots,
            terms=terms,
            cooldown=cooldown,
        )
    except ValueError as error:
        raise PreflightError(str(error)) from error
    if where.hosts is None:
        local = {"ssh_port": ssh_port, "ssh_identity_file": ssh_identity_file, "executable": executable}
        obsolete.explain({**local, "network_interfaces": network_interfaces})
    obsolete.explain(
        {
            "slots": slots if host_discovery_script is None else None,
            "cooldown_range": cooldown_range if where.terms is None or where.hosts is None else None,
            "disable_cache": disable_cache,
            "use_gloo": use_gloo,
            "use_mpi": use_mpi,
            "mpi_args": mpi_args,
        }
    )
    terms = where.terms
    size = num_proc if terms is None else terms.size
    if verbose:
        names = ", ".join(host.name for host in where.hosts or ()) or socket.gethostname()
        print_on_stderr(f"{size} ranks on {names}")
    shown = verbose is None or bool(verbose)
    with contextlib.ExitStack() as stack:
        show_line = print_line
        if output_filename is not None:
            show_line = stack.enter_context(OutputFiles(Path(output_filename), size)).show
        given: dict[str, Any] = {"args": args, "kwargs": kwargs, "environment": environment, "show_line": show_line}
        if where.hosts is not None and where.options is not None:
            of_hosts: dict[str, Any] = {"terms": terms, "cooldown": where.cooldown, "watch": where.watch}
            return run_function_on_hosts(func, size, where.hosts, where.options, **of_hosts, show_status=shown, **given)
        if terms is None:
            return run_local(func, size, all_results=True, show_status=shown, **given)
        return run_elastic_local(func, terms, **given)


def _terms(size: int, least: int | None, most: int | None, reset_limit: int | None, script: str | None) -> Terms | None:
    """What was said of an elastic job; None when it is none."""
    from spark_estimator.elastic.rounds import Terms
    from spark_estimator.env import Settings

    if least is None and most is None and script is None:
        if reset_limit is not None:
            raise ValueError(f"reset_limit={reset_limit} is for elastic jobs: say min_num_proc, too.")
        return None
    if most is not None and most < size:
        raise ValueError(f"max_num_proc={most} is less than the {size} ranks of num_proc.")
    if most is None and script is not None:
        most = _MOST_RANKS
    return Terms(
        size=size,
        min_size=size if least is None else least,
        replace=most is not None,
        max_size=most,
        reset_limit=reset_limit,
        timeout=timedelta(seconds=Settings.read().elastic_timeout_seconds),
    )
