"""Hands reading to petastorm itself, in the one combination of versions in which it works."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from spark_estimator.errors import DataError, PythonEnvironmentError

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
    result = {name: version_of(name) for name in _NEEDED}
    wrong = [name for name, version in result.items() if version is None or not _is_within(version, *_NEEDED[name])]
    if python > (3, 11):
        wrong.insert(0, "Python")
    if not wrong:
        return None
    has = [
        f"Python {python[0]}.{python[1]}",
        *(f"{name} {version or '(not installed)'}" for name, version in result.items()),
    ]
    return (
        f"petastorm does not work with {', '.join(wrong)} as installed here ({', '.join(has)}): it needs {_WORKS}; "
        "install these in a separate environment. Or leave out reader='petastorm'."
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


def open_loader(
    file_urls: Sequence[str],
    as_they_are: bool,
    batch_size: int,
    shuffling_queue_capacity: int,
    data_loader_fn: Callable[..., Any] | None,
    reader_arguments: Mapping[str, Any],
) -> AbstractContextManager[Any]:
    """Return a context manager that returns petastorm's own loader over its own reader.

    Args:
        as_they_are: the files have the requested types.
        data_loader_fn: makes the loader; None: petastorm's `DataLoader`.
        reader_arguments: of `petastorm.make_batch_reader`; None means its default, except for num_epochs.

    Raises:
        PythonEnvironmentError: as `check`.
        DataError: petastorm would give other types than were asked for.
    """
    check()
    if not as_they_are:
        raise DataError(
            "petastorm reads the DataFrame's files as they are: make the converter with read_files=False, which writes "
            "them in the types that dtype names, or with dtype=None."
        )
    arguments = {name: value for name, value in reader_arguments.items() if value is not None or name == "num_epochs"}
    return _open(list(file_urls), batch_size, shuffling_queue_capacity, data_loader_fn, arguments)


@contextmanager
def _open(
    file_urls: list[str],
    batch_size: int,
    shuffling_queue_capacity: int,
    data_loader_fn: Callable[..., Any] | None,
    reader_arguments: Mapping[str, Any],
) -> Iterator[Any]:
    import petastorm
    from petastorm.pytorch import DataLoader

    reader = petastorm.make_batch_reader(file_urls, **{"reader_pool_type": _POOL, **reader_arguments})
    try:
        yield (data_loader_fn or DataLoader)(
            reader, batch_size=batch_size, shuffling_queue_capacity=shuffling_queue_capacity
        )
    finally:
        reader.stop()
        reader.join()


def _find_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_within(version: str, least: tuple[int, ...], below: tuple[int, ...]) -> bool:
    numbers = []
    for part in version.split(".")[:3]:
        digits = "".join(item for item in part if item.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return least <= tuple(numbers) < below
