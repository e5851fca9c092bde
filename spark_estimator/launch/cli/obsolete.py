"""Arguments of Horovod's that mean nothing here: accepted, and explained in a line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

_NO_MPI = "there is no MPI: ranks talk over shared memory and TCP"
_NO_INTERFACES = "each rank listens at the address by which its host is known to the launcher"
_ALL_HERE = "all ranks run on this host"

#: Name -> why it has no effect.
REASONS = {
    "use_mpi": _NO_MPI,
    "mpi_args": _NO_MPI,
    "extra_mpi_args": _NO_MPI,
    "use_gloo": "Gloo's place is taken by an engine of its own, which is always used",
    "nics": _NO_INTERFACES,
    "network_interfaces": _ALL_HERE,
    "disable_cache": "nothing is checked beforehand that could be remembered",
    "executable": "ranks run in the Python of their launcher; on Spark, PYSPARK_PYTHON decides which that is",
    "ssh_port": _ALL_HERE,
    "ssh_identity_file": _ALL_HERE,
    "slots": "it is for hosts that a host_discovery_script names without a number",
    "cooldown_range": "it is for hosts that fail, which an elastic job of several hosts may do without",
}


def explain(given: Mapping[str, Any], *, stacklevel: int = 3) -> None:
    """Warns, a line each, of arguments that were set and have no effect.

    Args:
        given: name -> value; None and False mean that it was not set.
        stacklevel: as in `warnings.warn`; 3 is the caller of the function that calls this.
    """
    for name, value in given.items():
        if value is None or value is False or (name == "executable" and value == sys.executable):
            continue
        warnings.warn(f"{name}={value!r} has no effect: {REASONS[name]}.", stacklevel=stacklevel)


def renamed(old: str, given: Any, new: str, value: Any, default: Any = None) -> Any:
    """`value`, or what was given under the deprecated name where `value` was not."""
    if given is None:
        return value
    warnings.warn(f"{old} is deprecated: say {new}={given!r}.", DeprecationWarning, stacklevel=3)
    return given if value == default else value
