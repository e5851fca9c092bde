"""Makes process groups for ``torch.distributed``: the default one on the job's engine, others on process sets."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlparse

import torch.distributed
from torch.distributed import Backend, DistBackendError, distributed_c10d
from torch.distributed.distributed_c10d import BackendConfig, PrefixStore, Store

from spark_estimator.collectives import context
from spark_estimator.collectives import rendezvous as rendezvous_module
from spark_estimator.collectives.engine import Engine
from spark_estimator.env import MASTER_VARIABLE, Settings
from spark_estimator.extensions.process_group import (
    gloo_threads,
    messages,
    older_torch,
    other_backends,
    reducers,
    store,
)
from spark_estimator.extensions.process_group.group import EngineGroup
from spark_estimator.extensions.process_group.issuing import BACKEND_NAME
from spark_estimator.extensions.process_group.links import Links
from spark_estimator.extensions.process_group.messages import Mailbox
from spark_estimator.extensions.process_group.store import JobStore, KeyValues

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName  # PyTorch 2.6 and 2.7 have none

_GROUPS = "torch.distributed groups"
_STORES = "torch.distributed stores"

Rendezvous = Iterator[tuple[Store, int, int]]


class JobGroups:
    """The common state of the process groups of one membership. All ranks of the job make it together.

    Attributes:
        engine: of the job.
        mailbox: for messages between two ranks.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.mailbox = Mailbox(engine, context.settings().stall_warning_seconds)
        self._values = KeyValues()
        self.links = Links(
            engine,
            {
                store.PURPOSE: self._values.serve,
                messages.PURPOSE: self.mailbox.take,
                messages.WATCH: self.mailbox.hold_watcher,
            },
        )
        self.mailbox.links = self.links
        self._store: JobStore | None = None
        self._prepared: tuple[Engine, int] | None = None

    def make_store(self, timeout: timedelta) -> Store:
        """Return a fresh store of all ranks; they all call this."""
        values = self._values if self.engine.global_rank == 0 else None
        # Held here as well: C++ holds the half of it that is C++.
        self._store = JobStore(self.links, values, timeout, at_first_use=other_backends.check_encryption)
        return PrefixStore(f"{context.take_number(_STORES)}", self._store)

    def make_default_group(self, store: Store, timeout: timedelta) -> EngineGroup:
        """Return the group of all ranks."""
        number = context.take_number(_GROUPS)
        if self._store is not None:
            self._store.at_first_use = None  # by this package's own backend

        def make_more(ranks: Sequence[int], **options: Any) -> EngineGroup | None:
            return self._make_new_group(store, timeout, ranks, **options)

        return EngineGroup(store, self.engine, number, timeout, self.mailbox, at_end=self.close, more=make_more)

    def _make_new_group(
        self,
        own_store: Store,
        default_timeout: timedelta,
        ranks: Sequence[int],
        *,
        timeout: timedelta | None = None,
        group_name: str = "",
        group_desc: str | None = None,
        backend: str | None = None,
        **_: Any,
    ) -> EngineGroup | None:
        limit = default_timeout if timeout is None else timeout
        # Torch names a group that only its members make by their hash.
        part = self.make_engine(ranks, limit, backend, members_only=not group_name.isdecimal())
        if part is None:
            return None
        group = self.make_group(part, PrefixStore(f"{group_name}/", own_store), limit)
        group._set_group_name(cast("GroupName", group_name))
        group._set_group_desc(group_desc or "undefined")
        return group

    def make_engine(
        self, ranks: Sequence[int], limit: timedelta, backend: str | None, *, members_only: bool
    ) -> tuple[Engine, int] | None:
        """Return an engine for a group of some ranks, and the group's number, or None on other ranks. All ranks call
        it.

        Args:
            ranks: of the job, in ascending order.
            limit: how long to wait for the other ranks.
            backend: that the caller of ``new_group`` named.
            members_only: whether only the group's ranks are here, which is refused unless these are all.
        """
        ranks = list(ranks)
        if members_only and len(ranks) != self.engine.size:
            raise ValueError(
                f"new_group(ranks={ranks}, use_local_synchronization=True): with {BACKEND_NAME} all ranks of the job "
                "must create a group together, including those outside it. Remove that argument, and call new_group "
                "on every rank."
            )
        problem = _find_backend_problem(backend)
        if ranks != sorted(ranks):
            problem = f"{BACKEND_NAME} numbers a group's ranks in ascending order only, not as {ranks}."
        try:
            engine = context.make_group(ranks, "torch.distributed.new_group", problem, limit)
        except TimeoutError:
            raise DistBackendError(
                f"new_group(ranks={ranks}) on rank {self.engine.global_rank}: some rank of the job had not called it "
                f"after {limit.total_seconds():g} seconds. All ranks of the job must call new_group, including those "
                "outside the group, in the same order as their other operations. Call it again to keep waiting."
            ) from None
        number = context.take_number(_GROUPS)
        return None if engine is None else (engine, number)

    def make_group(self, part: tuple[Engine, int], store: Store, limit: timedelta) -> EngineGroup:
        """Return the group of what `make_engine` has returned."""
        engine, number = part

        def end() -> None:
            self.mailbox.leave(number)
            context.end_group(engine)

        return EngineGroup(store, engine, number, limit, self.mailbox, at_end=end)

    @contextmanager
    def prepare_group(self, arguments: dict[str, Any]) -> Iterator[None]:
        """Make a new group's engine on all ranks, for the `create` that torch calls on the group's ranks.

        Args:
            arguments: those of ``new_group``; some may be missing.
        """
        default = distributed_c10d.GroupMember.WORLD
        ranks = arguments.get("ranks")
        ranks = list(range(self.engine.size) if ranks is None else sorted(ranks))
        # Torch refuses ranks that are not a set of the job's ranks.
        refused = len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self.engine.size))
        if refused or self is not _current or not isinstance(default, EngineGroup):
            yield
            return
        limit = arguments.get("timeout") or default.timeout
        members_only = bool(arguments.get("use_local_synchronization"))
        self._prepared = self.make_engine(ranks, limit, arguments.get("backend"), members_only=members_only)
        try:
            yield
        finally:
            if self._prepared is not None:  # torch raised an error before it reached the backend
                context.end_group(self._prepared[0])
                self._prepared = None

    def take_prepared(self) -> tuple[Engine, int] | None:
        """Return what `prepare_group` has made for the current call."""
        part, self._prepared = self._prepared, None
        return part

    def close(self) -> None:
        """End every group except the job's own."""
        global _current
        with _lock:
            if _current is self:
                _current = None
        self.mailbox.close()
        self.links.close()


_lock = threading.RLock()
_current: JobGroups | None = None


def _get_job_groups() -> JobGroups:
    """Return the common state of the present membership's groups; join the job if necessary."""
    global _current
    context.init()
    engine = context.engine()
    with _lock:
        if _current is not None and _current.engine is not engine:
            _current.close()
        if _current is None:
            _current = JobGroups(engine)
        return _current


def create(options: Any, _backend_options: object = None) -> EngineGroup:
    """Make a group for torch's ``init_process_group("spark_estimator")``.

    Args:
        options: torch's ``_DistributedBackendOptions``: store, group_rank, group_size, timeout, global_ranks_in_group.

    Raises:
        RuntimeError: this PyTorch is too old.
        ValueError: rank or number of ranks are not those of the job, or the group is a part of one that is not ours.
    """
    older_torch.check_version()
    groups = _get_job_groups()
    engine, part = groups.engine, list(options.global_ranks_in_group)
    prepared = groups.take_prepared()
    if prepared is not None:
        return groups.make_group(prepared, options.store, options.timeout)
    if part and len(set(part)) != engine.size:
        raise ValueError(
            f"a {BACKEND_NAME} group of the ranks {part} can only be made where the default group is one: call "
            f"init_process_group({BACKEND_NAME!r}) first."
        )
    _check_rank(options.group_rank, options.group_size)
    older_torch.prepare_new_groups(_prepare_group)
    return groups.make_default_group(options.store, options.timeout)


@contextmanager
def _prepare_group(arguments: dict[str, Any]) -> Iterator[None]:
    with nullcontext() if _current is None else _current.prepare_group(arguments):
        yield


def _find_backend_problem(backend: str | None) -> str:
    """Return what is wrong with the requested backend of a new group; '' for nothing."""
    if backend is None or BACKEND_NAME in BackendConfig(Backend(backend)).get_device_backend_map().values():
        return ""
    return (
        f"backend={backend!r} is unavailable beside a default group of {BACKEND_NAME}: torch has that one make all "
        "groups. Leave backend out."
    )


def _check_rank(rank: int, size: int) -> None:
    """Raise ValueError unless torch's arguments agree with the job; -1 means not set."""
    own_rank, ranks = context.rank(), context.size()
    if rank not in (-1, own_rank) or size not in (-1, ranks):
        raise ValueError(
            f"init_process_group({BACKEND_NAME!r}) was given rank {rank} of {size}, but this process is rank "
            f"{own_rank} of the {ranks} that were started. Leave rank and world_size out (and RANK, WORLD_SIZE unset), "
            "or give these."
        )


def wrap_rendezvous(otherwise: Callable[..., Rendezvous]) -> Callable[..., Rendezvous]:
    """Return a handler for ``env://`` with the job's own store, or `otherwise` where others have set another master.

    A process that a rank started has the rank's variables but is none of the job: ForeignLauncherError.
    """

    def handler(url: str, timeout: timedelta = torch.distributed.default_pg_timeout, **options: Any) -> Rendezvous:
        if not _has_launchers_master(os.environ) or not (_is_in_job() or MASTER_VARIABLE in os.environ):
            yield from otherwise(url, timeout=timeout, **options)
            return
        groups = _get_job_groups()
        query = dict(parse_qsl(urlparse(url).query))
        _check_rank(int(query.get("rank", -1)), int(query.get("world_size", -1)))
        other_backends.choose_interface()
        yield groups.make_store(timeout), context.rank(), context.size()

    return handler


def _has_launchers_master(environ: Mapping[str, str]) -> bool:
    """Return whether MASTER_ADDR and MASTER_PORT are those of this package's launcher, or neither is set."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return not (address or port) or f"{address}:{port}" == environ.get(MASTER_VARIABLE)


def _is_in_job() -> bool:
    if context.is_initialized() or rendezvous_module.find_current() is not None:
        return True
    return Settings.read().rendezvous_fd is not None


def register() -> None:
    """Make the backend known to torch. Idempotent."""
    reducers.keep_groups_of_reducers()
    gloo_threads.await_gloo_at_exit()
    if BACKEND_NAME in torch.distributed.Backend.backend_list:
        return
    torch.distributed.Backend.register_backend(BACKEND_NAME, create, extended_api=True, devices=["cpu"])
    # The function of that name hides the module.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["env"] = wrap_rendezvous(handlers["env"])


# --- forks: a child must not hold what its parent listens at -------------------------------------


def _before_fork() -> None:
    if _current is not None:
        _current.links.before_fork()


def _after_fork_in_parent() -> None:
    if _current is not None:
        _current.links.after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _current
    groups, _current = _current, None
    if groups is not None:
        with suppress(OSError):
            groups.links.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
