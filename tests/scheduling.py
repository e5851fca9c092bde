"""Divides the tests: among processes, and among days."""

from __future__ import annotations

import functools
import random
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# Packages whose conftest.py keeps ranks alive between tests. Each such set of ranks takes several seconds to start.
PACKAGES_WITH_RANKS = (
    "tests/extensions/checkpoint/",
    "tests/extensions/local_steps/",
    "tests/extensions/process_group/",
    "tests/keras/",
    "tests/lightning/",
    "tests/scenarios/huggingface/",
    "tests/tensorflow/",
    "tests/torch/",
)

# Folders whose files take long for the number of their tests.
LONG = (
    "tests/compat/",
    "tests/docs/",
    "tests/estimators/",
    "tests/extensions/",
    "tests/notebooks/",
    "tests/scenarios/",
)


def scope_of(nodeid: str) -> str:
    """What runs in one process: the tests of a file, or of a package that shares ranks."""
    file = nodeid.split("::", 1)[0]
    return next((package for package in PACKAGES_WITH_RANKS if file.startswith(package)), file)


def place_of(scope: str) -> int:
    """The order in which scopes start: what takes longest first, so that at the end no process runs alone for long."""
    return 0 if scope in PACKAGES_WITH_RANKS else 1 if scope.startswith(LONG) else 2


def place_in_limited_run(scope: str, changed: Iterable[str], day: int) -> float:
    """The order in a run that may end before all scopes have begun: changed ones first, others by chance.

    Args:
        changed: the paths of the files that the last commits have changed.
        day: the others' order is that of this day, so that each of them runs within a few days.
    """
    if any(path.startswith(scope) for path in changed):
        return 0
    return 1 + random.Random(f"{day} {scope}").random()


def changed_files(root: Path) -> set[str]:
    """The files that the commits of the last 24 hours before HEAD have changed; none outside a repository."""
    git = ("git", "-C", str(root))
    last = subprocess.run([*git, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False).stdout
    if not last.strip():
        return set()
    log = [*git, "log", f"--since={int(last) - 86_400}", "--name-only", "--format="]
    return set(subprocess.run(log, capture_output=True, text=True, check=True).stdout.split())


class PackageScheduling(LoadScopeScheduling):
    """xdist's distribution by scopes, with the scopes of `scope_of`, in the order of `place_of`.

    Of those with the same place the ones with the most tests start first. With `--begin-until` the order is that of
    `place_in_limited_run`.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._place: Callable[[str], float] = place_of
        if config.getoption("begin_until") is not None:
            changed, day = changed_files(config.rootpath), int(time.time() // 86_400)
            self._place = functools.partial(place_in_limited_run, changed=changed, day=day)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            raise RuntimeError("a process that replaces a crashed one has collected other tests; see its log")

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces a process that crashed, as another one does, and gets work once it has collected
        self.workqueue.move_to_end(min(self.workqueue, key=self._place), last=False)
        super()._assign_work_unit(node)


def files_of_part(part: str, files: Iterable[Path]) -> set[Path]:
    """The files of part K of N, for `part` = "K/N". Every file is in exactly one part.

    Raises:
        pytest.UsageError: `part` is not two whole numbers with 1 <= K <= N.
    """
    number, slash, count = part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part={part}: write K/N with 1 <= K <= N, for example --part=2/12")
    return set(sorted(set(files))[int(number) - 1 :: int(count)])
