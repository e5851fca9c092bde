"""This process's membership of a job: ``init()``, ``shutdown()``, and its rank and topology in between.

A process is a rank of at most one job at a time. It joins the job of its rendezvous
(``rendezvous.find_current``), which its launcher provided. Without one it joins the job in which another
launcher, such as mpirun, started it (``other_launchers``), or it is a job of one rank. It may leave and join
again any number of times, as long as all ranks do.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from spark_estimator import _native, log
from spark_estimator.collectives import launcher_link, preemption
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.connector import Connector
from spark_estimator.collectives.connections.plan import count_descriptors
from spark_estimator.collectives.engine import Engine, make_forked_error
from spark_estimator.collectives.gpu_libraries import can_open_cuda, find_nccl_version
from spark_estimator.collectives.membership import EngineStarter, Membership
from spark_estimator.collectives.other_launchers import join as other_launchers
from spark_estimator.collectives.process_set import ProcessSet
from spark_estimator.collectives.rendezvous import Topology, host_id
from spark_estimator.env import WITHOUT_EFFECT, Settings, find_misspelled_variables, requests_autotune
from spark_estimator.errors import HorovodInternalError, NotInitializedError, PeerLostError
from spark_estimator.observe.rank_processes import name_process
from spark_estimator.posix import register_at_fork

#: Horovod's functions that are alike in all frameworks: each binding exports them.
__all__ = [
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_log = log.get_logger(__name__)


# Held by init and shutdown, while a process set connects, and during a fork: so a child inherits a finished state or
# none. Reentrant, as an exit hook or a signal handler may call shutdown() in the middle of init().
_lock = threading.RLock()
_membership: Membership | None = None
_connector: Connector | None = None
_forked_from: int | None = None
_at_init: list[Callable[[], object]] = []


def init(
    comm: Sequence[int] | Any = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None
) -> None:
    """Join the job. A second call is a no-op until ``shutdown()``; then it joins again, together with all other ranks.

    Blocks until all ranks have called it, for at most HOROVOD_START_TIMEOUT seconds (default 30). In an elastic job it
    begins again, without those that were lost meanwhile.

    Args:
        comm: the processes that make the job, in the order of their ranks in it: a list of the ranks that the launcher
            gave them, or a communicator of mpi4py; None: all. A part of them only under launchers such as mpirun, srun
            and torchrun, where the others may pass another list.
        process_sets: sets to register, the same on all ranks; ``"dynamic"``: sets may be added and removed later, as
            with HOROVOD_DYNAMIC_PROCESS_SETS=1.

    Raises:
        PeerLostError: some ranks did not connect; the text names them.
        AuthenticationError: a rank holds another key.
        ForeignLauncherError: another launcher started this process as one of several, and they can't form a job: the
            text names what to do.
        HorovodInternalError: this process has too few file descriptors or threads left, or was forked from a rank.
        MismatchError: the ranks gave different process sets.
        ValueError: an argument or an environment variable cannot be used.
        NativeLibraryError: the engine's library cannot be loaded.
    """
    global _membership
    with _lock:
        check_not_forked()
        if _membership is not None:
            return
        settings = Settings.read()
        preemption.watch().begin(settings)
        _native.library()
        if process_sets == "dynamic":
            settings = dataclasses.replace(settings, dynamic_process_sets=True)
        static = _make_static_sets(process_sets)
        while _membership is None:
            try:
                _membership = _join(settings, comm, static)
            except PeerLostError as error:
                _await_another_round(error)
                settings = dataclasses.replace(settings, launched_size=None)  # it has become another
    name_process(_membership.topology.rank)
    for function in _at_init:
        function()


def call_at_init(function: Callable[[], object]) -> None:
    """Have a function called at the end of each `init` that joins a job; also now, if this process is in one."""
    _at_init.append(function)
    if _membership is not None:
        function()


def _make_static_sets(process_sets: Sequence[ProcessSet | Sequence[int]] | str | None) -> list[ProcessSet]:
    if process_sets is None or process_sets == "dynamic":
        return []
    if isinstance(process_sets, str):
        raise ValueError(f"init(process_sets={process_sets!r}): pass a list of process sets, or 'dynamic'.")
    try:
        process_sets = list(process_sets)
    except TypeError:
        raise ValueError(f"init(process_sets={process_sets!r}): pass a list of process sets, or 'dynamic'.") from None
    return [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in process_sets]


def _join(settings: Settings, comm: Any, static: Sequence[ProcessSet]) -> Membership:
    global _connector
    rendezvous, ranks = rendezvous_module.find_current(settings.rendezvous_fd), other_launchers.to_ranks(comm)
    if (rendezvous is None or other_launchers.has_joined()) and not settings.ignore_launcher:
        rendezvous = other_launchers.make_rendezvous(settings, ranks)
    elif rendezvous is not None and rendezvous.launcher_fd >= 0:
        rendezvous = launcher_link.await_admission(rendezvous)
    topology = Topology.of([host_id()], 0) if rendezvous is None else rendezvous.topology
    if ranks is not None and not other_launchers.has_joined() and ranks != tuple(range(topology.size)):
        raise ValueError(f"init(comm={list(ranks)}): this job always has all of its {topology.size} ranks; omit comm.")
    log.configure(settings.log_level, topology.rank, times=not settings.log_hide_time)
    if rendezvous is not None and settings.launched_size not in (None, topology.size):
        _log.warning("HOROVOD_SIZE=%s, but this process joins a job of %d.", settings.launched_size, topology.size)
    if topology.rank == 0:
        for name, setting in find_misspelled_variables().items():
            _log.warning("%s is set, but nothing reads it. Is %s meant?", name, setting)
        if requests_autotune():
            _log.warning("HOROVOD_AUTOTUNE has no effect: %s.", WITHOUT_EFFECT["HOROVOD_AUTOTUNE"])
    if rendezvous is not None and (_connector is None or _connector.rendezvous != rendezvous):
        if _connector is not None:
            _connector.close()
        count = count_descriptors(rendezvous, range(topology.size), settings)
        lacking = descriptors.find_shortage(count) or descriptors.find_thread_shortage()
        if lacking:
            raise HorovodInternalError(f"init() on {rendezvous.own_name}: {lacking}")
        link = launcher_link.link()
        _connector = Connector(rendezvous) if link is None else Connector(rendezvous, is_over=link.round_is_over)
    starter = EngineStarter(None if rendezvous is None else _connector, settings, _lock)
    return Membership(starter, topology, settings, static)


def _await_another_round(error: PeerLostError) -> None:
    """Wait for another round after one of an elastic job that lost a rank before it had begun. Raise in other jobs."""
    link, former = launcher_link.link(), rendezvous_module.find_current()
    if link is None or former is None:
        raise error
    _log.warning("waiting for another round: %s", error)
    link.store_reason(error)
    link.await_next_round(former)


def shutdown() -> None:
    """Leaves the job. Requests of this rank, and of others that wait for it, fail with ShutDownError. Idempotent."""
    global _membership
    with _lock:
        membership, _membership = _membership, None
        if membership is not None and _forked_from is None:
            membership.shutdown()


def is_initialized() -> bool:
    """Return whether this process is between ``init()`` and ``shutdown()``."""
    return _membership is not None


def topology() -> Topology:
    """Return this rank's position in its job. Raises NotInitializedError, as do all queries below."""
    return _require_membership().topology


def rank() -> int:
    """Return this process's rank: 0 <= rank() < size()."""
    return _require_membership().topology.rank


def size() -> int:
    """Return the number of ranks of the job."""
    return _require_membership().topology.size


def local_rank() -> int:
    """Return this rank's index on its host; where each rank has whole GPUs, the number of the GPU to use."""
    return _require_membership().topology.local_rank


def local_size() -> int:
    """Return the number of ranks on this rank's host."""
    return _require_membership().topology.local_size


def cross_rank() -> int:
    """Return the index of this rank's host among the hosts that have a rank of this local_rank."""
    return _require_membership().topology.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank of this local_rank."""
    return _require_membership().topology.cross_size


def is_homogeneous() -> bool:
    """Return whether every host has the same number of ranks."""
    return _require_membership().topology.is_homogeneous


def engine(process_set: ProcessSet | None = None) -> Engine:
    """Return the engine to submit to: of all ranks, or of a process set. In a forked child each use of it raises.

    Raises:
        ValueError: the set is not registered, or this rank is not in it.
    """
    membership = _require_membership()
    return membership.engine if process_set is None else membership.sets.engine(process_set)


def check_not_forked() -> None:
    """Raise HorovodInternalError in a process that was forked from a rank."""
    if _forked_from is not None:
        raise make_forked_error(_forked_from)


def settings() -> Settings:
    """Return the settings that ``init()`` read."""
    return _require_membership().settings


def take_number(kind: str) -> int:
    """Return 0, 1, 2... for each kind of thing, counted since ``init()``; for names that all ranks make alike."""
    return _require_membership().take_number(kind)


def restart_numbers(prefix: str) -> None:
    """Restarts the counts of kinds whose name begins with `prefix`; call it where all ranks are at the same point."""
    _require_membership().restart_numbers(prefix)


def _require_membership() -> Membership:
    if _membership is None:
        raise NotInitializedError
    return _membership


# --- Process sets -----------------------------------------------------------------------------------------------------


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set. All ranks of the job call it, with the same ranks, also those that are not in the set.

    Args:
        process_set: the set, or its ranks in any order.

    Returns:
        The set, which now has its ``process_set_id``.

    Raises:
        ValueError: on all ranks: sets may not change (see HOROVOD_DYNAMIC_PROCESS_SETS), the ranks are not a valid set,
            or a set of them exists already.
        MismatchError: on all ranks: they gave different ranks.
        HorovodInternalError: on all ranks: the set's ranks could not connect, or a rank has no file descriptors left.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _require_membership().sets.add(process_set)
    return process_set


def make_group(ranks: Sequence[int], what: str, problem: str = "", timeout: timedelta | None = None) -> Engine | None:
    """Make an engine for some of the ranks, beside the process sets; for a binding whose framework makes groups.

    All ranks of the job call it, also those that are not among them. It does not ask whether sets are dynamic.
    ``ProcessSets.make_group`` documents the arguments, the return value and the errors.
    """
    return _require_membership().sets.make_group(ranks, what, problem, timeout)


def end_group(engine: Engine) -> None:
    """End this rank's part in a group that `make_group` made. Idempotent; does nothing to the job's own engine."""
    if _membership is not None:
        _membership.sets.end_group(engine)


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set. All ranks of the job call it. Its requests that are pending fail with ShutDownError.

    Returns:
        Whether it was registered; False at once for the set of all ranks, which cannot be removed.

    Raises:
        ValueError: on all ranks: sets may not change.
        MismatchError: on all ranks: they gave different sets.
    """
    return _require_membership().sets.remove(process_set)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the registered process sets: their ranks, by their ids."""
    return _require_membership().sets.ranks()


def find_process_set(process_set_id: int) -> ProcessSet:
    """Return the registered process set of that id; 0 is the set of all ranks.

    Raises:
        ValueError: the job has no set of that id.
    """
    return _require_membership().sets.of(process_set_id)


# --- Timeline ---------------------------------------------------------------------------------------------------------


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start writing a Chrome trace of this rank's ops, with or without HOROVOD_TIMELINE=DYNAMIC, which Horovod needs.

    Args:
        file_path: rank 0's file. Each other rank, and each process set, has one beside it: ``timeline.rank1.json``;
            ``python -m spark_estimator timeline merge`` joins them.
        mark_cycles: whether the trace marks when the engine's thread woke.

    Raises:
        ValueError: the path is empty, its folder does not exist, or a timeline is being written already.
        TypeError: it is no path.
        HorovodInternalError: the file cannot be written.
    """
    if not isinstance(file_path, (str, os.PathLike)):
        raise TypeError(f"start_timeline: file_path must be the path of a file, not {file_path!r}.")
    folder = Path(file_path).parent
    if not folder.is_dir():
        raise ValueError(f"start_timeline on rank {rank()}: there is no folder {folder} on {socket.gethostname()}.")
    _require_membership().start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Completes the trace. Does nothing when none is being written."""
    _require_membership().stop_timeline()


# --- What this build can do, in Horovod's terms -----------------------------------------------------------------------


def mpi_built() -> bool:
    """Return False: no MPI."""
    return False


def mpi_enabled() -> bool:
    """Return False: no MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Raise ValueError, as Horovod does where MPI is not in use."""
    raise ValueError("MPI is not in use, so its thread support is undefined.")


def gloo_built() -> bool:
    """Return True: Horovod's name for its CPU backend, which scripts require; here it is the native engine."""
    return True


def gloo_enabled() -> bool:
    """Return True; see `gloo_built`."""
    return True


def nccl_built() -> int:
    """Return the version code of the NCCL that would send GPU tensors, as 22703 for 2.27.3; 0: none, or no GPU."""
    return find_nccl_version()


def cuda_built() -> bool:
    """Return whether a CUDA runtime can be loaded here."""
    return can_open_cuda()


def rocm_built() -> bool:
    """Return False."""
    return False


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


# --- Ends: of the process, and forks of it ----------------------------------------------------------------------------


def _leave_at_exit() -> None:
    shutdown()
    if _connector is not None and _forked_from is None:
        _connector.close()


def _before_fork() -> None:
    _lock.acquire()
    if _connector is not None and _forked_from is None:
        _connector.before_fork()


def _after_fork_in_parent() -> None:
    if _connector is not None and _forked_from is None:
        _connector.after_fork_in_parent()
    _lock.release()


def _after_fork_in_child() -> None:
    """Leaves the child without any connection, so that peers notice when the rank dies though its child lives on.

    What the child knows about the job stays: data loaders ask for rank() and size().
    """
    global _lock, _forked_from
    _lock = threading.RLock()
    if _forked_from is not None:
        return
    if _connector is not None:
        _connector.after_fork_in_child()
        _forked_from = os.getppid()
    if _membership is not None:
        _membership.abandon_after_fork()
        _forked_from = os.getppid()


atexit.register(_leave_at_exit)
register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
