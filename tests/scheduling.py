"""Divides the tests: among processes, and among days."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

# Packages whose conftest.py keeps ranks alive between tests. Each such set of ranks takes several seconds to start.
PACKAGES_WITH_RANKS = (
    "tests/checkpoint/",
    "tests/keras/",
    "tests/lightning/",
    "tests/scenarios/huggingface/",
    "tests/tensorflow/",
    "tests/torch/",
)


def scope_of(nodeid: str) -> str:
    """What runs in one process: the tests of a file, or of a package that shares ranks."""
    file = nodeid.split("::", 1)[0]
    return next((package for package in PACKAGES_WITH_RANKS if file.startswith(package)), file)


class PackageScheduling(LoadScopeScheduling):
    """xdist's distribution by scopes, with the scopes of `scope_of`. Those with the most tests start first."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def files_of_part(part: str, files: Iterable[Path]) -> set[Path]:
    """The files of part K of N, for `part` = "K/N". Every file is in exactly one part.

    Raises:
        pytest.UsageError: `part` is not two whole numbers with 1 <= K <= N.
    """
    number, slash, count = part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--part={part}: write K/N with 1 <= K <= N, for example --part=2/12")
    return set(sorted(set(files))[int(number) - 1 :: int(count)])
