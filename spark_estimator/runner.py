"""The two classic names for running a function on several ranks: Databricks' `HorovodRunner` and Horovod's `run`."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_estimator.errors import PreflightError, WorkerFailedError
from spark_estimator.launch.job.attempts import Limits, to_timedelta
from spark_estimator.launch.job.options import JobOptions, check_elastic_sizes, check_num_proc, check_text
from spark_estimator.launch.job.script import Script
from spark_estimator.observe.driver_log import announce, print_line

if TYPE_CHECKING:
    from spark_estimator.elastic.decisions import Terms
    from spark_estimator.launch.ssh.where import Where

_VERBOSITIES = ("log_callback_only", "all")
# A job of more ranks than that is a mistake in the argument, not a plan.
_MOST_RANKS = 10_000


class HorovodRunner:
    """Runs a function on several ranks that can use ``hvd`` collectives, and returns rank 0's value.

    Args:
        np: number of ranks. Positive: Spark tasks that start together in the current Spark session; without a session,
            a local one is created. Negative: ``-np`` processes on this machine, without Spark. 0: all slots of the
            session; deprecated, as in Databricks.
        driver_log_verbosity: "all" prints every rank's stdout and stderr on the driver. "log_callback_only" (the
            default) prints only what ranks pass to `log_to_driver`; the rest is in the executors' logs. A negative np
            prints everything. Where everything is printed, a terminal or a notebook also shows a status line.
        max_restarts: how often all ranks start again if a rank dies, exits or raises an error, or an executor is lost;
            ``spark_estimator.launch.job.attempts`` lists the failures that are retried. The function finds the number
            of the attempt, from 1, in the variable `SPARK_ESTIMATOR_ATTEMPT`.
        timeout: seconds until `run` ends the ranks, including the wait for slots and all attempts.

    Attributes:
        num_processor: `np` as it was passed.
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
            raise TypeError(f"np must be an int, the number of ranks; got {np!r} of type {type(np).__name__}.")
        if abs(np) > _MOST_RANKS:
            raise ValueError(f"np={np} ranks: more than {_MOST_RANKS} are not supported.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise ValueError(f"driver_log_verbosity must be one of {_VERBOSITIES}; got {driver_log_verbosity!r}.")
        self._limits = Limits.from_arguments(max_restarts, timeout)
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Call ``main(*args, **kwargs)`` on every rank, or run the Python file `main` with `args` in ``sys.argv``.

        cloudpickle serializes the function and its arguments, with what they use of the notebook or script. In them,
        ``import horovod.torch as hvd`` works even if Horovod isn't installed. With ``data=df``, a DataFrame, `main`
        gets a `frame_share.FrameShare` as `data`: ``data.loader(batch_size)`` gives each rank an equal share of the
        rows. With a negative np the DataFrame must be nothing but Parquet files.

        Returns:
            What `main` returned on rank 0; at most 64 MiB when pickled. None for a script.

        Raises:
            PreflightError: the job can't start; the text has the remedy.
            DataError: the DataFrame cannot be read, or a rank has found a value that it cannot use; the text names
                the column.
            WorkerFailedError: a rank failed; its traceback is printed first, as the cause.
            ResultError: the value of rank 0 could not be returned.
            JobTimeoutError: it took longer than `timeout`.
            JobCancelledError: the job was cancelled in Spark.
        """
        if isinstance(main, (str, os.PathLike)):
            if kwargs:
                raise TypeError(f"run({main!r}): a script takes strings, not the keyword arguments {sorted(kwargs)}.")
            main, args = Script(main, args), ()
        caller = f"HorovodRunner(np={self.num_processor})"
        rows = None
        errors: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if hasattr(kwargs.get("data"), "sparkSession"):
            from spark_estimator.frame_share import share_frame
            from spark_estimator.launch.spark.errors import raise_task_errors

            kwargs, rows = share_frame(main, args, kwargs, f"{caller}.run", on_spark=self.num_processor >= 0)
            errors = raise_task_errors()
        if self.num_processor < 0:
            from spark_estimator.launch.local import run_local

            options = JobOptions(args=args, kwargs=kwargs, limits=self._limits)
            with errors:
                return run_local(main, -self.num_processor, options)[0]
        from spark_estimator.launch.spark.entry import run_in_session
        from spark_estimator.launch.spark.slots import count_all_slots

        if self.num_processor == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated: pass the number of ranks, for example np=2.",
                DeprecationWarning,
                stacklevel=2,
            )
        show_all = self.driver_log_verbosity == "all"
        options = JobOptions(
            args=args,
            kwargs=kwargs,
            show_line=print_line if show_all else None,
            verbose=int(show_all),
            limits=self._limits,
        )
        size = self.num_processor or count_all_slots
        with errors:
            return run_in_session(main, size, options, caller=caller, size_word="np", rows=rows)[0]


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
    network_interfaces: str | Collection[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on `num_proc` ranks, processes of this host or of several: `horovod.run`.

    Args:
        func: pickled by cloudpickle, with what it uses of the notebook or script; so are its arguments.
        num_proc: number of ranks.
        min_num_proc, max_num_proc: either makes the job elastic: it continues with at least `min_num_proc` ranks
            (default: `num_proc`) when it loses some; with `max_num_proc`, new processes replace them, and the job
            grows while there are free slots. `func` then uses `elastic.run`.
        reset_limit: elastic: how often the ranks of the job may change.
        hosts, hostfile: ``"host:slots,host:slots"``, or a file with lines ``host slots=n``. Ranks fill the hosts
            in this order; those of other hosts are started over ssh, see ``launch.ssh``. Without them all ranks
            run on this host.
        start_timeout: seconds that ranks wait for each other in ``init()``; None: `HOROVOD_START_TIMEOUT`, 30 by
            default.
        output_filename: a folder; each rank's output is also written to ``rank.N/stdout`` and ``stderr`` in it.
        verbose: prints the ranks and their hosts; 0: also no status line on a terminal or in a notebook.
        ssh_port, ssh_identity_file: for other hosts; by default those of ssh's configuration.
        network_interfaces: names, a list or set of them, or one string with commas; ranks of several hosts use
            the first that their host has, of a set the first in alphabetical order. Empty: not set.
        executable: the Python of other hosts; by default the same path as on this host.
        host_discovery_script: a command that prints a line ``host:slots`` for each host; makes the job elastic.
            It runs before the start and then every second; ranks use new slots, and leave removed ones.
        slots: slots of a host that the script prints without a number.
        cooldown_range: two numbers of seconds: a failed host is used again after the first, doubled each time up
            to the second. None: it is not used again.
        disable_cache, use_gloo, use_mpi, mpi_args: no effect, with a warning.
        np, min_np, max_np, network_interface: deprecated names of num_proc, min_num_proc, max_num_proc,
            network_interfaces.

    Returns:
        What `func` returned on each rank, in rank order; at most 64 MiB each when pickled. In an elastic job, on
        each rank of the last round.

    Raises:
        PreflightError: the job can't start; the text has the remedy.
        WorkerFailedError: a rank failed; its traceback is printed first, as the cause.
        ResultError: a rank's value could not be returned.
    """
    from spark_estimator.env import Settings
    from spark_estimator.launch.cli import obsolete
    from spark_estimator.launch.cli.flags import to_cooldown
    from spark_estimator.launch.job.failures import add_horovods_sentence
    from spark_estimator.launch.log_relay.display import OutputFiles
    from spark_estimator.launch.ssh.command import SshOptions, join_interfaces
    from spark_estimator.launch.ssh.where import find_hosts

    num_proc = obsolete.resolve_renamed("np", np, "num_proc", num_proc, default=1)
    min_num_proc = obsolete.resolve_renamed("min_np", min_np, "min_num_proc", min_num_proc)
    max_num_proc = obsolete.resolve_renamed("max_np", max_np, "max_num_proc", max_num_proc)
    if type(num_proc) is not int or not 0 < num_proc <= _MOST_RANKS:
        raise ValueError(f"num_proc must be an int from 1 to {_MOST_RANKS}, the number of ranks; got {num_proc!r}.")
    network_interfaces = obsolete.resolve_renamed(
        "network_interface", network_interface, "network_interfaces", network_interfaces
    )
    network_interfaces = join_interfaces(network_interfaces)
    check_elastic_sizes(num_proc, min_num_proc, max_num_proc, reset_limit)
    check_num_proc(slots, "slots")
    texts = {
        "hosts": hosts,
        "hostfile": hostfile,
        "host_discovery_script": host_discovery_script,
        "output_filename": output_filename,
        "network_interfaces": network_interfaces,
        "ssh_identity_file": ssh_identity_file,
        "executable": executable,
    }
    for name, text in texts.items():
        check_text(name, text)
    if start_timeout is not None:
        to_timedelta("start_timeout", start_timeout)
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

    terms = _make_terms(num_proc, min_num_proc, max_num_proc, reset_limit, host_discovery_script)
    cooldown = to_cooldown(cooldown_range)
    try:
        where = find_hosts(
            num_proc,
            read_options,
            announce,
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
    size = num_proc if where.terms is None else where.terms.size
    if verbose:
        names = ", ".join(host.name for host in where.hosts or ()) or socket.gethostname()
        announce(f"{size} ranks on {names}")
    with contextlib.ExitStack() as stack:
        show_line = print_line
        if output_filename is not None:
            show_line = stack.enter_context(OutputFiles(Path(output_filename), size)).show
        options = JobOptions(
            args=args,
            kwargs=kwargs,
            environment=environment,
            all_results=True,
            show_line=show_line,
            verbose=1 if verbose is None else int(bool(verbose)),
        )
        try:
            return _run_where(where, func, size, options)
        except WorkerFailedError as error:
            raise add_horovods_sentence(error) from error.__cause__


def _run_where(where: Where, function: Callable[..., Any], size: int, options: JobOptions) -> list[Any]:
    """Run a job on the hosts of `where`, or on this one."""
    from spark_estimator.launch.elastic.job_entry import run_elastic_local
    from spark_estimator.launch.local import run_local
    from spark_estimator.launch.ssh.job import run_function_on_hosts

    if where.hosts is not None and where.options is not None:
        return run_function_on_hosts(
            function,
            size,
            where.hosts,
            where.options,
            options,
            terms=where.terms,
            cooldown=where.cooldown,
            watch=where.watch,
        )
    if where.terms is None:
        return run_local(function, size, options)
    return run_elastic_local(function, where.terms, options)


def _make_terms(
    size: int, least: int | None, most: int | None, reset_limit: int | None, script: str | None
) -> Terms | None:
    """Make the terms of an elastic job; None if the job is not elastic."""
    from spark_estimator.elastic.decisions import Terms
    from spark_estimator.env import Settings

    if least is None and most is None and script is None:
        if reset_limit is not None:
            raise ValueError(f"reset_limit={reset_limit} needs an elastic job: set min_num_proc, too.")
        return None
    if most is None and script is not None:
        most = _MOST_RANKS
    return Terms(
        size=size,
        min_size=size if least is None else least,
        replace=most is not None,
        max_size=most,
        reset_limit=reset_limit,
        timeout=timedelta(seconds=Settings.read().elastic_timeout_seconds),
        standby=Settings.read().standby,
    )
