"""The versions of Python and packages on the driver and its executors, and which differences a job tolerates."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence

from spark_estimator import __version__

PYTHON, OURS = "python", "spark_estimator"
# Those whose pickles, tensors or tables are sent between driver and ranks.
_COMPARED = ("torch", "numpy", "cloudpickle", "pyarrow")


@functools.cache
def read_own_versions() -> Mapping[str, str]:
    """Return name -> version here; '' for packages that are not installed. Nothing is imported."""
    versions = {PYTHON: platform.python_version(), OURS: __version__}
    for name in _COMPARED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def explain_refusal(driver: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Return why an executor cannot run the driver's job, as what a rank "runs"; '' when it can."""
    if theirs[OURS] != driver.get(OURS):
        return (
            f"runs spark_estimator {theirs[OURS]}, but the driver runs {driver.get(OURS)}: install the same version "
            "on both."
        )
    if _get_minor(theirs[PYTHON]) != _get_minor(driver.get(PYTHON, "")):
        return (
            f"runs Python {theirs[PYTHON]}, but the driver runs {driver.get(PYTHON)}: pickled functions can't be "
            "loaded across Python versions. Before creating the session, set PYSPARK_PYTHON to a Python of the "
            "driver's version."
        )
    return ""


def describe_differences(driver: Mapping[str, str], everyone: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Describe the differences between the driver's versions and those of [tasks] (host, versions), in a line."""
    texts = []
    for name in driver:
        hosts: dict[str, list[str]] = {}
        for host, theirs in everyone:
            if theirs.get(name, driver[name]) != driver[name]:
                hosts.setdefault(theirs[name], []).append(host)
        for version, where in hosts.items():
            names = ", ".join(dict.fromkeys(where))
            texts.append(f"{name} {version or 'is missing'} on {names}, {driver[name] or 'none'} on the driver")
    return f"driver and executors have different versions, which may cause errors: {'; '.join(texts)}" if texts else ""


def _get_minor(version: str) -> list[str]:
    return version.split(".")[:2]
