"""One membership of a job, from ``init()`` to ``shutdown()``: its engines, made as the settings ask."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import time
import weakref
from collections.abc import Sequence

from spark_estimator import _native
from spark_estimator.collectives import pending
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.connections.connection import RankGroup
from spark_estimator.collectives.connections.connector import Connections, Connector
from spark_estimator.collectives.connections.plan import count_descriptors
from spark_estimator.collectives.cores import count_available_cores, decide_settings, find_affinity_core
from spark_estimator.collectives.engine import Engine
from spark_estimator.collectives.gpu_libraries import find_libraries_for_engine
from spark_estimator.collectives.process_set import ProcessSet, ProcessSets
from spark_estimator.collectives.rendezvous import Topology, host_id
from spark_estimator.collectives.ring_order import Ring, agree_on_ring
from spark_estimator.env import Settings
from spark_estimator.errors import HorovodInternalError
from spark_estimator.log import get_logger
from spark_estimator.observe import progress, step_times, timeline
from spark_estimator.observe.stacks import StackReporter, format_current_stacks
from spark_estimator.security.encryption import find_libcrypto

_log = get_logger(__name__)


class EngineStarter:
    """Makes the engines of one membership, each for a group of ranks that this rank is one of.

    Args:
        connector: connects this rank with the others; None in a job of one rank without a launcher.
        settings: of the engines.
        connecting: held while a group of ranks connects, so that no thread forks in the middle of it.
    """

    def __init__(
        self, connector: Connector | None, settings: Settings, connecting: contextlib.AbstractContextManager[object]
    ) -> None:
        self._connector = connector
        self._round = 0 if connector is None else connector.next_round()
        self._settings = settings
        self._connecting = connecting
        path = timeline.get_path_at_init(settings.timeline)
        #: The timeline that is being written: its path, and whether it marks cycles; None: none is.
        self.timeline = None if path is None else (path, settings.timeline_mark_cycles)
        peers = () if connector is None else connector.rendezvous.peers
        #: This rank's host, as its launcher knows it.
        self.host = peers[connector.rendezvous.rank].host if connector is not None else socket.gethostname()
        self._ring: Ring | None = None  # of the job, once it is known
        self._started: list[weakref.ref[Engine]] = []  # a list, so that another thread may copy it at any time

    def start(self, group: RankGroup) -> Engine:
        """Connect this rank with the others of a group, and starts its engine for it. Raise as ``init`` does."""
        with self._connecting:
            connections = Connections(0, 1, (), -1)
            if self._connector is None:
                topology = Topology.of([host_id()], 0)
                host, ranks_on_host = socket.gethostname(), 1
            else:
                peers = self._connector.rendezvous.peers
                own_facts = peers[self._connector.rendezvous.rank]
                host, ranks_on_host = own_facts.host, sum(peer.host_id == own_facts.host_id for peer in peers)
                topology = Topology.of([peers[rank].host_id for rank in group.ranks], group.ranks.index(own_facts.rank))
                connections = self._connector.connect_all(self._round, self._settings, group)
            try:
                encrypted = self._connector is not None and self._connector.rendezvous.encrypted
                config = _make_config(
                    self._settings, topology, group, host, connections.segment_fd, encrypted=encrypted
                )
                config.ranks_on_host = ranks_on_host  # of the job, whichever of its ranks the group has
                config.overlay = connections.late is not None
            except BaseException:
                connections.close()
                raise
            try:
                engine = Engine(config, connections.peers)
            except BaseException:
                if connections.late is not None:
                    connections.late.stop()
                raise
            engine.loss_is_expected = self._settings.elastic
            self._started = [other for other in self._started if other() is not None] + [weakref.ref(engine)]
        # Threads end with the engine, and are waited for, so that nothing of an engine outlives its shutdown.
        if connections.late is not None:
            engine.at_end.append(connections.late.stop)
        try:
            if self._ring is not None:
                engine.order_ring(*self._ring.of(engine.ranks))
            if connections.late is not None:
                connections.late.attach(engine)
            reporter = StackReporter(engine.await_question, engine.answer, lambda: self._describe_waits(engine))
        except BaseException:  # there is no thread left: the others must not wait for this rank
            engine.shutdown()
            raise
        engine.at_end.append(reporter.stop)
        if self.timeline is not None:
            path, mark_cycles = self.timeline
            try:
                start_timeline(engine, path, mark_cycles)
            except (ValueError, HorovodInternalError) as error:
                # As in Horovod: a trace that cannot be written must not end a training.
                _log.error("no timeline is written: %s", error)
        return engine

    def order_rings(self, job: Engine) -> None:
        """Set how rings pass through the ranks of the job, which are idle, and of later groups. All ranks call it.

        Raises HorovodInternalError: another rank was lost meanwhile, or has left.
        """
        if self._connector is None:
            return
        self._ring = agree_on_ring(job, self._connector.rendezvous.peers, self._settings)

    def count_descriptors(self, ranks: Sequence[int]) -> int:
        """Return how many file descriptors this rank needs for a group of these ranks, of which it is one."""
        if self._connector is None:
            return descriptors.count_for_ranks(len(ranks))
        return count_descriptors(self._connector.rendezvous, ranks, self._settings)

    def abandon_after_fork(self) -> None:
        """Close the connections of all engines in a forked child; every later use of one raises an error."""
        for engine in self._list_engines():
            engine.abandon_after_fork()

    def _list_engines(self) -> list[Engine]:
        return [engine for reference in self._started if (engine := reference()) is not None]

    def measure_progress(self) -> tuple[int, float, str]:
        """Return how many collectives were submitted, how long this rank has waited in one by now, and in which."""
        engines = self._list_engines()
        return (
            sum(engine.read_counter("requests") for engine in engines),
            *pending.find_longest_wait(engines, time.monotonic()),
        )

    def read_times(self) -> step_times.EngineTimes:
        """Return what the engines have counted."""
        engines = self._list_engines()
        return step_times.EngineTimes(
            *(
                sum(engine.read_counter(f"{name}_nanoseconds") for engine in engines) / 1e9
                for name in ("blocked", "wait", "execution", "unsent")
            )
        )

    def _describe_waits(self, asked: Engine) -> str:
        """Return the report of a rank that others wait for, sent to them and written to its own log."""
        waits = pending.describe_requests(self._list_engines(), time.monotonic())
        if asked.rank != 0:  # the coordinator's own answer is printed where it is
            _log.warning("other ranks are waiting for rank %d, this rank. %s", asked.global_rank, waits)
        return f"{waits}\n{format_current_stacks()}"


class Membership:
    """This process as a rank of one job. Blocks until all ranks are there.

    Attributes:
        topology: this rank's position in the job.
        settings: what ``init()`` read.
        engine: of all ranks.
        sets: the process sets, each with its engine.

    Args:
        starter: makes the engines.
        topology, settings: as above.
        static: the process sets to begin with.

    Raises:
        As ``context.init`` does.
    """

    def __init__(
        self, starter: EngineStarter, topology: Topology, settings: Settings, static: Sequence[ProcessSet]
    ) -> None:
        self.topology = topology
        self.settings = settings
        self._starter = starter
        self._numbers: dict[str, itertools.count[int]] = {}
        self.engine = starter.start(RankGroup.job(topology.size))
        self.sets = ProcessSets(self.engine, starter.start, starter.count_descriptors, settings.dynamic_process_sets)
        try:
            starter.order_rings(self.engine)
            self.sets.start(static)
        except BaseException:
            self.sets.shutdown()
            raise
        step_times.follow_engines(starter.read_times, starter.host)
        self._progress_reporter = progress.start_reporter(starter.measure_progress)

    def take_number(self, kind: str) -> int:
        """Return 0, 1, 2... for each kind of thing; for names that all ranks make alike."""
        return next(self._numbers.setdefault(kind, itertools.count()))

    def restart_numbers(self, prefix: str) -> None:
        """Restarts the counts of kinds whose name begins with `prefix`."""
        for kind in [kind for kind in self._numbers if kind.startswith(prefix)]:
            del self._numbers[kind]

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Has all engines write their timelines, also those of later process sets. All do, or none.

        Raises ValueError: no path, or a timeline is being written; HorovodInternalError: a file cannot be written.
        """
        started: list[Engine] = []
        try:
            for engine in self.sets.list_running():
                start_timeline(engine, path, mark_cycles)
                started.append(engine)
        except BaseException:
            for engine in started:
                timeline.stop(engine)
            raise
        self._starter.timeline = path, mark_cycles

    def stop_timeline(self) -> None:
        """Completes the files. Does nothing when none are being written."""
        self._starter.timeline = None
        for engine in self.sets.list_running():
            timeline.stop(engine)

    def shutdown(self) -> None:
        """Leaves the job, and all process sets."""
        if self._progress_reporter is not None:
            self._progress_reporter.stop()
        step_times.follow_engines(None)
        self.sets.shutdown()

    def abandon_after_fork(self) -> None:
        """Close all connections in a forked child; every later use of an engine raises an error."""
        self._starter.abandon_after_fork()


def start_timeline(engine: Engine, path: str, mark_cycles: bool) -> None:
    """Has one engine write its part of the timeline at `path`. Raises as ``observe.timeline.start`` does."""
    timeline.start(engine, path, engine.global_rank, process_set=engine.process_set, mark_cycles=mark_cycles)


def _make_config(
    settings: Settings, topology: Topology, group: RankGroup, host: str, segment_fd: int, *, encrypted: bool
) -> _native.Config:
    decided = decide_settings(settings, topology, count_available_cores())
    libraries = find_libraries_for_engine(settings)
    return _native.Config(
        struct_bytes=ctypes.sizeof(_native.Config),
        rank=topology.rank,
        size=topology.size,
        global_rank=group.ranks[topology.rank],
        process_set=group.number,
        own_segment_fd=segment_fd,
        cache_capacity=settings.cache_capacity,
        overlap=decided["overlap"].value,
        cores=count_available_cores(),
        hierarchical=decided["hierarchical_allreduce"].value,
        affinity_core=find_affinity_core(settings, topology),
        spin_microseconds=decided["spin_microseconds"].value,
        fusion_threshold_bytes=settings.fusion_threshold_bytes,
        start_timeout_seconds=settings.start_timeout_seconds,
        stall_warning_seconds=settings.stall_warning_seconds,
        stall_shutdown_seconds=settings.stall_shutdown_seconds,
        heartbeat_seconds=settings.heartbeat_seconds,
        silence_seconds=settings.silence_seconds,
        # The host as its launcher knows it; the process, which only it knows for certain.
        name=f"{host} (pid {os.getpid()})".encode(),
        gpu_operations=_choose_gpu_operations(settings, topology, encrypted),
        cuda_library=os.fsencode(libraries.cuda),
        nccl_library=os.fsencode(libraries.nccl),
        crypto_library=os.fsencode(find_libcrypto()) if encrypted else None,
    )


def _choose_gpu_operations(settings: Settings, topology: Topology, encrypted: bool) -> _native.GpuOperations:
    """Choose how GPU tensors are sent: between hosts of an encrypted job not by NCCL, which does not encrypt."""
    operations = _native.GpuOperations
    chosen = operations.__members__.get(settings.gpu_operations.upper(), operations.AUTO)
    if not encrypted or topology.local_size == topology.size:
        return chosen
    if chosen is operations.NCCL:
        raise HorovodInternalError(
            f"rank {topology.rank}: HOROVOD_GPU_OPERATIONS=NCCL can't be used between hosts in an encrypted job, "
            "because NCCL does not encrypt. Use HOROVOD_GPU_OPERATIONS=staged, or start the job with "
            "SPARK_ESTIMATOR_ENCRYPTION=off on a network that is encrypted below."
        )
    return operations.STAGED
