"""Makes this process a rank of the job that another launcher started it in."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from spark_estimator import __version__
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.other_launchers.addresses import find_own_addresses, listen
from spark_estimator.collectives.other_launchers.files import FileBoard, find_host_folder, make_own_folder, read_key
from spark_estimator.collectives.other_launchers.launchers import ForeignJob, find_foreign_job
from spark_estimator.collectives.other_launchers.notices import (
    AgreedBoard,
    Notice,
    NoticeBoard,
    derive_key,
    make_file_name,
)
from spark_estimator.collectives.other_launchers.rank_locks import RankLocks
from spark_estimator.collectives.other_launchers.rendezvous_server import JobTerms, RendezvousServer, join_server
from spark_estimator.collectives.other_launchers.watch import Watch
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import IGNORE_LAUNCHER_VARIABLE, JOB_KEY_VARIABLE, JOINED_VARIABLE, Settings
from spark_estimator.errors import ForeignLauncherError
from spark_estimator.log import get_logger
from spark_estimator.security.encryption import Policy, check_encryption

_log = get_logger(__name__)

_HOME = "~/.spark_estimator/jobs"
_KEY_FILE = "~/.spark_estimator/job_key"
# The launcher's numbers of the ranks with which this process has joined, in the order of the job's own numbers.
_joined: tuple[int, ...] | None = None
# This process's lock of its rank, until it ends.
_locks: RankLocks | None = None
# All ranks look for the notice in the same place, unless their variables differ.
_SAME_PLACE_SECONDS = 1.0


def has_joined() -> bool:
    """Return whether this process's rendezvous is one that `make_rendezvous` made."""
    return _joined is not None


def find_joined_ranks() -> tuple[int, ...] | None:
    """Return the launcher's numbers of the ranks with which this process has joined, for `make_rendezvous`."""
    return _joined


def make_rendezvous(settings: Settings, ranks: Sequence[int] | None = None) -> Rendezvous | None:
    """Return the rendezvous by which this process is a rank of its launcher's job; None if no launcher started it as
    one of several. All processes of the job call it, or all of `ranks`; it blocks until they do. A later call
    with the same ranks gives the same rendezvous.

    Args:
        settings: how long to wait, and the user's key or folder.
        ranks: the launcher's numbers of the processes that make a job, in the order of their ranks in it; None: all.

    Raises:
        ForeignLauncherError: the launcher's job can't be joined; the text names what to do.
        PeerLostError: some ranks did not connect; the text names them.
        ValueError: this process is not one of `ranks`, or a variable cannot be used.
    """
    global _joined
    job = find_foreign_job()
    if job is None:
        return None
    rank = _check_job(job)
    members = tuple(range(job.size)) if ranks is None else tuple(ranks)
    if members == _joined:
        return rendezvous_module.find_current()
    if _joined is None and os.environ.get(JOINED_VARIABLE) == job.mark:
        raise ForeignLauncherError(
            f"init(): this process was started by a rank, {job.process}, and is none itself. Run collectives in the "
            "rank. A worker that multiprocessing or a DataLoader starts with 'spawn' or 'forkserver' runs the main "
            'script again: put init() and what follows under `if __name__ == "__main__":`. If this process should be a '
            f"job of its own, set {IGNORE_LAUNCHER_VARIABLE}=1."
        )
    if rank not in members or len(set(members)) != len(members) or not all(0 <= each < job.size for each in members):
        raise ValueError(
            f"init(comm={list(members)}): this process is {job.process}. List different ranks of 0 to {job.size - 1}, "
            "this one among them: each rank gives the list of the job that it is in."
        )
    joined = _exchange_addresses(job, settings, members, members.index(rank)) if len(members) > 1 else None
    rendezvous_module.set_current(joined)
    _joined = members
    os.environ[JOINED_VARIABLE] = job.mark
    return joined


def _check_job(job: ForeignJob) -> int:
    """Return this process's rank. Raises ForeignLauncherError if the job can't be joined."""
    if not job.joins:
        problem = "spark_estimator can't join such a job: each process would train alone"
    elif job.contradiction or job.rank is None:
        problem = job.contradiction
    else:
        return job.rank
    raise ForeignLauncherError(
        f"init(): this process is {job.process}. {problem[0].upper()}{problem[1:]}. Start the program with `horovodrun "
        f"-np {job.size} python train.py` instead (on several hosts: -H host1:2,host2:2), or on Spark with "
        f"HorovodRunner(np={job.size}).run(train). If each process should train alone, set "
        f"{IGNORE_LAUNCHER_VARIABLE}=1."
    )


def _exchange_addresses(job: ForeignJob, settings: Settings, members: tuple[int, ...], rank: int) -> Rendezvous:
    encrypted = settings.encryption == Policy.REQUIRE.value and not job.one_host
    if encrypted:
        check_encryption()  # so that this rank is named
    terms = JobTerms(len(members), __version__, encrypted)
    board = _make_board(job, settings, members)
    locks = _open_own_locks(job, members)
    try:
        watch = Watch(job, locks, members[0], whole=len(members) == job.size)
        if rank > 0:
            find = _make_finder(board, job, settings, members)
            return join_server(find, board.where, rank, terms, settings.start_timeout_seconds, job.one_host, watch)
        return _gather_ranks(job, board, terms, settings, watch)
    except BaseException:
        locks.release()
        raise


def _gather_ranks(job: ForeignJob, board: NoticeBoard, terms: JobTerms, settings: Settings, watch: Watch) -> Rendezvous:
    """Collect the addresses of all ranks, as rank 0."""
    listeners = listen(_choose_addresses(job, board), board.ports)
    if not listeners:
        raise ForeignLauncherError(f"init(): rank 0 can't listen at {board.where}: all of them are taken.")
    try:
        key = board.publish([sock.getsockname()[:2] for sock in listeners])
    except BaseException:
        for sock in listeners:
            sock.close()
        raise
    server = RendezvousServer(listeners, key, terms, job.process, board.where)
    try:
        check = watch.make_gathering_check(board, terms)
        return server.gather(settings.start_timeout_seconds, "127.0.0.1" if job.one_host else "", check)
    finally:
        server.close()
        board.close()


def _open_own_locks(job: ForeignJob, members: tuple[int, ...]) -> RankLocks:
    """Return the locks to the ranks of this job, kept until this process ends."""
    global _locks
    if _locks is not None:
        _locks.release()
    folder = None
    with suppress(ForeignLauncherError):  # not private: then only these checks are missing
        folder = make_own_folder(find_host_folder()) if job.identity else None
    _locks = RankLocks(folder, f"{job.identity} ranks {members if len(members) < job.size else 'all'}")
    return _locks


def _make_finder(
    board: NoticeBoard, job: ForeignJob, settings: Settings, members: tuple[int, ...]
) -> Callable[[], Notice | None]:
    """Find rank 0's notice, also where rank 0 leaves it if its variables count the hosts differently: the ranks then
    meet, and all of them get an error.
    """
    boards = [board]
    with suppress(ForeignLauncherError):
        other = find_foreign_job(one_host=not job.one_host)
        if other is not None:
            boards.append(_make_board(other, settings, members))
    began = time.monotonic()

    def find() -> Notice | None:
        turn = int((time.monotonic() - began) / _SAME_PLACE_SECONDS)  # 0: only where rank 0 should leave it
        notices = [notice for each in (boards if turn else boards[:1]) if (notice := each.find()) is not None]
        return notices[turn % len(notices)] if notices else None

    return find


def _choose_addresses(job: ForeignJob, board: NoticeBoard) -> list[list[str]]:
    """Return the addresses of the server: each entry is tried before the next."""
    if job.one_host:
        return [["127.0.0.1"]]
    return [[board.address], find_own_addresses()] if board.address else [find_own_addresses()]


def _make_board(job: ForeignJob, settings: Settings, members: tuple[int, ...]) -> NoticeBoard:
    whole = members == tuple(range(job.size))
    identity = (job.identity or job.launcher) + ("" if whole else f" ranks {members}")
    name = make_file_name(identity)
    key = _read_users_key(job, settings, identity)
    if job.one_host:
        return FileBoard(find_host_folder(), name, key)
    if key is not None and job.master and 0 in members[:1]:
        return AgreedBoard(job.master, key)
    if settings.job_folder:
        return _mark_shared(FileBoard(settings.job_folder, name, key))
    home = os.path.expanduser(_HOME)
    if job.identity and home.startswith("/"):
        try:
            os.makedirs(home, 0o700, exist_ok=True)
        except OSError:
            pass
        else:
            return _mark_shared(FileBoard(home, name, key))
    raise ForeignLauncherError(
        f"init(): this process is {job.process}, on several hosts, and rank 0 has no way to give the others its "
        "address and the job's key. Set one of these for all processes: SPARK_ESTIMATOR_JOB_FOLDER, a folder that all "
        "hosts share; or MASTER_ADDR, the host of rank 0, with a key in the file ~/.spark_estimator/job_key of every "
        "host (make one with `openssl rand -hex 32`) or in SPARK_ESTIMATOR_JOB_KEY. If each process should train "
        f"alone, set {IGNORE_LAUNCHER_VARIABLE}=1."
    )


def _read_users_key(job: ForeignJob, settings: Settings, identity: str) -> bytes | None:
    """Return the key that the user has set for this job; None if there is none."""
    if settings.job_key:
        if job.sends_environment and not job.one_host and job.rank == 0:
            _log.warning(
                "%s sends variables to other hosts without encryption. If it has sent %s, all who can read that "
                "traffic can join the job. On a network that you don't trust keep the key in a file on every host "
                "(~/.spark_estimator/job_key, or what SPARK_ESTIMATOR_JOB_KEY_FILE names).",
                job.launcher,
                JOB_KEY_VARIABLE,
            )
        return derive_key(settings.job_key, identity)
    path = settings.job_key_file or os.path.expanduser(_KEY_FILE)
    if settings.job_key_file or (not job.one_host and os.path.exists(path)):
        return derive_key(read_key(path), identity, path)
    return None


def _mark_shared(board: FileBoard) -> FileBoard:
    board.where += (
        ", in a folder that all hosts must share. Where they share none, set MASTER_ADDR and keep a key in "
        "~/.spark_estimator/job_key on every host; SPARK_ESTIMATOR_JOB_FOLDER names another folder"
    )
    return board


def to_ranks(comm: Any) -> tuple[int, ...] | None:
    """Return the launcher's ranks that ``init(comm=...)`` means; None: all. Raises ValueError: it is neither."""
    if comm is None:
        return None
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and isinstance(comm, mpi.Comm):
        if comm == mpi.COMM_NULL:
            raise ValueError("init(comm=COMM_NULL): this process is not in the communicator.")
        world = mpi.COMM_WORLD.Get_group()
        return tuple(mpi.Group.Translate_ranks(comm.Get_group(), list(range(comm.Get_size())), world))
    try:
        return tuple(int(rank) for rank in comm) or None
    except (TypeError, ValueError):
        raise ValueError(f"init(comm={comm!r}): pass a list of ranks, or a communicator of mpi4py.") from None
