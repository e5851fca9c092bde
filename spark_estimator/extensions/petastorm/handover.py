"""Hands reading to petastorm itself, in the one combination of versions in which it works."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spark_estimator.errors import PythonEnvironmentError

# Tested versions: newer versions of each fail at the import or in every reader.
_NEEDED = {
    "petastorm": ((0, 12, 1), (0, 14)),
    "pyarrow": ((14,), (15,)),
    "numpy": ((1, 26), (2,)),
    "pandas": ((2, 1), (2, 3)),
}
_WORKS = "Python 3.10 or 3.11 with petastorm 0.13.1, pyarrow 14.0.2, numpy 1.26.4, pandas 2.2.3 and pyspark 3.5"
# Its thread pool sometimes returns an epoch without rows (in 0.13), and its seeds are valid for this one.
_POOL = "dummy"


def describe_refusal(version_of: Callable[[str], str | None], python: tuple[int, int]) -> str | None:
    """Return why petastorm cannot read here; None: it can.

    Args:
        version_of: of an installed package; None: it is not.
        python: its version.
    """
    has = {name: version_of(name) for name in _NEEDED}
    wrong = [name for name, version in has.items() if not _is_within(version or "0", *_NEEDED[name])]
    if python > (3, 11):
        wrong.insert(0, "Python")
    if not wrong:
        return None
    there = f"Python {python[0]}.{python[1]}"
    there += "".join(f", {name} {version or '(not installed)'}" for name, version in has.items())
    return (
        f"petastorm does not work with {', '.join(wrong)} as installed here ({there}): it needs {_WORKS}; install "
        "these in a separate environment. Or leave out reader='petastorm'."
    )


def check() -> None:
    """Raise PythonEnvironmentError if petastorm cannot read here; the text names all versions."""
    reason = describe_refusal(_find_version, sys.version_info[:2])
    if reason is None and hasattr(importlib.import_module("petastorm"), "__spark_estimator_alias__"):
        reason = (
            "`petastorm` is an alias of spark_estimator in this process (compat.install(force=True)), which hides "
            "petastorm itself: leave out force=True, or reader='petastorm'."
        )
    if reason is not None:
        raise PythonEnvironmentError(reason)


@contextmanager
def open_loader(
    file_urls: Sequence[str], make: Callable[..., Any] | None, sizes: Mapping[str, int], arguments: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield a loader of petastorm's own reader; `check` comes first.

    Args:
        make: makes the loader of the reader and the `sizes`; None: petastorm's `DataLoader`.
        arguments: of `petastorm.make_batch_reader`; None means its default, except for num_epochs.
    """
    import petastorm
    from petastorm.pytorch import DataLoader

    options = {name: value for name, value in arguments.items() if value is not None or name == "num_epochs"}
    reader = petastorm.make_batch_reader(list(file_urls), **{"reader_pool_type": _POOL, **options})
    with stop_reader(reader):
        yield (make or DataLoader)(reader, **sizes)


@contextmanager
def stop_reader(reader: Any) -> Iterator[None]:
    """Stop a reader at the end of the block."""
    try:
        yield
    finally:
        reader.stop()
        reader.join()


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_within(version: str, least: tuple[int, ...], below: tuple[int, ...]) -> bool:
    return least <= tuple(map(int, re.findall(r"\d+", version)[:3])) < below
