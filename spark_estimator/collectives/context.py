"""This process's membership of a job: ``init()``, ``shutdown()``, and who and where it is meanwhile.

A process is a rank of at most one job at a time. It joins the job of its rendezvous (``rendezvous.current``), which
whoever started it provided; without one it is a job of its own, of one rank. It may leave and join again any number of
times, as long as all ranks do.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_estimator import _native, log
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.cores import available_cores, spin_microseconds
from spark_estimator.collectives.engine import Engine, forked_error
from spark_estimator.collectives.rendezvous import Topology, host_id
from spark_estimator.collectives.wiring import Switchboard, Wired
from spark_estimator.env import Settings
from spark_estimator.errors import NotInitializedError

_log = log.logger(__name__)


@dataclass
class _Membership:
    engine: Engine
    topology: Topology
    settings: Settings
    counters: dict[str, itertools.count[int]] = field(default_factory=dict)


# Held by init and shutdown as a whole, and by whoever forks: so a child inherits a finished state or none. Reentrant,
# as an exit hook or a signal handler may call shutdown() in the middle of init().
_lock = threading.RLock()
_membership: _Membership | None = None
_switchboard: Switchboard | None = None
_forked_from: int | None = None


def init(comm: Sequence[int] | None = None, process_sets: Sequence[object] | str | None = None) -> None:
    """Joins the job. A second call is a no-op until ``shutdown()``; then it joins again, together with all other ranks.

    Blocks until all ranks have called it, for at most HOROVOD_START_TIMEOUT seconds (default 30).

    Args:
        comm: None, or the list of all ranks: a job is always made of all ranks that were started.
        process_sets: None or empty; process sets are not there yet.

    Raises:
        PeerLostError: some ranks did not come; the text names them.
        AuthenticationError: a rank holds another key.
        ValueError: an argument or an environment variable cannot be used.
        NativeLibraryError: the engine's library cannot be loaded.
    """
    global _membership
    with _lock:
        if _membership is not None:
            return
        if _forked_from is not None:
            raise forked_error(_forked_from)
        settings = Settings.read()
        _native.library()
        if process_sets:
            raise ValueError(f"init(process_sets={process_sets!r}): process sets are not supported yet.")
        engine, topology = _join(settings, comm)
        _membership = _Membership(engine, topology, settings)


def _join(settings: Settings, comm: Sequence[int] | None) -> tuple[Engine, Topology]:
    global _switchboard
    found = rendezvous_module.current(settings.rendezvous_fd)
    topology = Topology.of([host_id()], 0) if found is None else found.topology
    _check_comm(comm, topology.size)
    log.configure(settings.log_level, topology.rank)
    if settings.launched_size not in (None, topology.size):
        _log.warning(
            "HOROVOD_SIZE=%s, but this process joins a job of %d. If another launcher started it (Horovod's own "
            "horovodrun, mpirun): use HorovodRunner or the horovodrun of spark_estimator.",
            settings.launched_size,
            topology.size,
        )
    if found is None:
        wired = Wired((), -1)
    else:
        if _switchboard is None or _switchboard.rendezvous != found:
            if _switchboard is not None:
                _switchboard.close()
            _switchboard = Switchboard(found)
        wired = _switchboard.connect_all(_switchboard.next_round(), settings)
    spin = settings.spin_microseconds
    config = _native.Config(
        struct_bytes=ctypes.sizeof(_native.Config),
        rank=topology.rank,
        size=topology.size,
        own_segment_fd=wired.segment_fd,
        fusion_threshold_bytes=settings.fusion_threshold_bytes,
        start_timeout_seconds=settings.start_timeout_seconds,
        stall_warning_seconds=settings.stall_warning_seconds,
        stall_shutdown_seconds=settings.stall_shutdown_seconds,
        spin_microseconds=spin_microseconds(topology.local_size, available_cores()) if spin is None else spin,
        name=f"{socket.gethostname()} (pid {os.getpid()})".encode(),
    )
    return Engine(config, wired.peers), topology


def _check_comm(comm: Sequence[int] | None, size: int) -> None:
    if comm is None:
        return
    try:
        ranks = list(comm)
    except TypeError:
        raise ValueError(f"init(comm={comm!r}): MPI communicators are not supported; leave comm out.") from None
    if ranks and ranks != list(range(size)):
        raise ValueError(f"init(comm={ranks!r}): a job is made of all its {size} ranks; leave comm out.")


def shutdown() -> None:
    """Leaves the job. Requests of this rank, and of others that wait for it, fail with ShutDownError. Idempotent."""
    global _membership
    with _lock:
        membership, _membership = _membership, None
        if membership is not None and _forked_from is None:
            membership.engine.shutdown()


def is_initialized() -> bool:
    """Whether this process is between ``init()`` and ``shutdown()``."""
    return _membership is not None


def topology() -> Topology:
    """Where this rank stands in its job. Raises NotInitializedError, as do all questions below."""
    return _member().topology


def rank() -> int:
    """This process's rank: 0 <= rank() < size()."""
    return _member().topology.rank


def size() -> int:
    """Number of ranks of the job."""
    return _member().topology.size


def local_rank() -> int:
    """This rank's index among those of its host; the number of the GPU to use."""
    return _member().topology.local_rank


def local_size() -> int:
    """Number of ranks on this rank's host."""
    return _member().topology.local_size


def cross_rank() -> int:
    """Index of this rank's host among the hosts that have a rank of this local_rank."""
    return _member().topology.cross_rank


def cross_size() -> int:
    """Number of hosts that have a rank of this local_rank."""
    return _member().topology.cross_size


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks."""
    return _member().topology.is_homogeneous


def engine() -> Engine:
    """The engine to submit to. In a forked child each use of it raises and says so."""
    return _member().engine


def settings() -> Settings:
    """The settings that ``init()`` read."""
    return _member().settings


def next_number(kind: str) -> int:
    """0, 1, 2... for each kind of thing, counted since ``init()``; for names that all ranks make alike."""
    return next(_member().counters.setdefault(kind, itertools.count()))


def _member() -> _Membership:
    if _membership is None:
        raise NotInitializedError
    return _membership


# --- What this build can do, in Horovod's terms -----------------------------------------------------------------------


def mpi_built() -> bool:
    """False: no MPI."""
    return False


def mpi_enabled() -> bool:
    """False: no MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Raises ValueError, as Horovod does where MPI is not in use."""
    raise ValueError("MPI is not in use, so there is no answer about its threads.")


def gloo_built() -> bool:
    """True. Horovod's name for its CPU backend, which scripts and estimators require; here it is the native engine."""
    return True


def gloo_enabled() -> bool:
    """True; see `gloo_built`."""
    return True


def nccl_built() -> int:
    """NCCL's version code; 0: collectives run on CPU memory only."""
    return 0


def cuda_built() -> bool:
    """False: collectives run on CPU memory only."""
    return False


def rocm_built() -> bool:
    """False."""
    return False


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


# --- Ends: of the process, and forks of it ----------------------------------------------------------------------------


def _at_exit() -> None:
    shutdown()
    if _switchboard is not None and _forked_from is None:
        _switchboard.close()


def _before_fork() -> None:
    _lock.acquire()
    if _switchboard is not None and _forked_from is None:
        _switchboard.before_fork()


def _after_fork_in_parent() -> None:
    if _switchboard is not None and _forked_from is None:
        _switchboard.after_fork_in_parent()
    _lock.release()


def _after_fork_in_child() -> None:
    """Leaves the child without any connection, so that peers notice when the rank dies though its child lives on.

    What the child knows about the job stays: data loaders ask for rank() and size().
    """
    global _lock, _forked_from
    _lock = threading.RLock()
    if _forked_from is not None:
        return
    if _switchboard is not None:
        _switchboard.after_fork_in_child()
        _forked_from = os.getppid()
    if _membership is not None:
        _membership.engine.abandon_after_fork()
        _forked_from = os.getppid()


atexit.register(_at_exit)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
