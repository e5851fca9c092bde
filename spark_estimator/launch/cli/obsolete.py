"""Horovod's arguments without effect here: accepted, with a log line that explains why."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

_NO_MPI = "there is no MPI: ranks talk over shared memory and TCP"
_NO_INTERFACES = "each rank listens on the address that the launcher uses for its host"
_ALL_HERE = "all ranks run on this host"

#: Name -> why it has no effect.
REASONS = {
    "use_mpi": _NO_MPI,
    "mpi_args": _NO_MPI,
    "extra_mpi_args": _NO_MPI,
    "use_gloo": "spark_estimator always uses its own engine instead of Gloo",
    "nics": _NO_INTERFACES,
    "network_interfaces": _ALL_HERE,
    "disable_cache": "there are no preliminary checks whose results could be cached",
    "executable": "ranks run in the Python of their launcher; on Spark, PYSPARK_PYTHON sets it",
    "ssh_port": _ALL_HERE,
    "ssh_identity_file": _ALL_HERE,
    "slots": "it needs a host_discovery_script",
    "cooldown_range": "it needs an elastic job of several hosts",
}


def explain(arguments: Mapping[str, Any], *, stacklevel: int = 3) -> None:
    """Warn, a line each, of arguments that were set (neither None nor False) and have no effect."""
    for name, value in arguments.items():
        if value is None or value is False or (name == "executable" and value == sys.executable):
            continue
        warnings.warn(f"{name}={value!r} has no effect: {REASONS[name]}.", stacklevel=stacklevel)


def resolve_renamed(old: str, old_value: Any, new: str, value: Any, default: Any = None) -> Any:
    """Return `value`, or the deprecated name's if it is not set. Raises ValueError: both are set, and differ."""
    if old_value is None:
        return value
    if value not in (default, old_value):
        raise ValueError(f"{old}={old_value!r} is the deprecated name of {new}={value!r}, and differs: leave it out.")
    warnings.warn(f"{old} is deprecated: use {new}={old_value!r}.", DeprecationWarning, stacklevel=3)
    return old_value if value == default else value
