"""Divides the tests: among processes, and among days."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# Packages whose conftest.py keeps ranks alive between tests. Each such set of ranks takes several seconds to start.
PACKAGES_WITH_RANKS = (
    "tests/checkpoint/",
    "tests/keras/",
    "tests/lightning/",
    "tests/scenarios/huggingface/",
    "tests/tensorflow/",
    "tests/torch/",
)

# Folders whose files take long for the number of their tests.
LONG = ("tests/compat/", "tests/docs/", "tests/estimators/", "tests/notebooks/", "tests/scenarios/")


def scope_of(nodeid: str) -> str:
    """What runs in one process: the tests of a file, or of a package that shares ranks."""
    file = nodeid.split("::", 1)[0]
    return next((package for package in PACKAGES_WITH_RANKS if file.startswith(package)), file)


def place_of(scope: str) -> int:
    """The order in which scopes start: what takes longest first, so that at the end no process runs alone for long."""
    return 0 if scope in PACKAGES_WITH_RANKS else 1 if scope.startswith(LONG) else 2


class PackageScheduling(LoadScopeScheduling):
    """xdist's distribution by scopes, with the scopes of `scope_of`, in the order of `place_of`.

    Of those with the same place the ones with the most tests start first.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            raise RuntimeError("a process that replaces a crashed one has collected other tests; see its log")

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces a process that crashed, as another one does, and gets work once it has collected
        self.workqueue.move_to_end(min(self.workqueue, key=place_of), last=False)
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
