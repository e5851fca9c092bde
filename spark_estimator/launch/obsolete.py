"""Arguments of Horovod's that mean nothing here: accepted, and explained in a line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

_NO_MPI = "there is no MPI: ranks talk over shared memory and TCP"
_NO_INTERFACES = "each rank listens at the address by which its host is known to the launcher"

#: Name -> why it has no effect.
REASONS = {
    "use_mpi": _NO_MPI,
    "mpi_args": _NO_MPI,
    "extra_mpi_args": _NO_MPI,
    "use_gloo": "Gloo's place is taken by an engine of its own, which is always used",
    "nics": _NO_INTERFACES,
    "network_interface": _NO_INTERFACES,
    "network_interfaces": _NO_INTERFACES,
    "disable_cache": "nothing is checked beforehand that could be remembered",
    "executable": "ranks run in the Python of their launcher; on Spark, PYSPARK_PYTHON decides which that is",
    "ssh_port": "all ranks run on this host",
    "ssh_identity_file": "all ranks run on this host",
    "slots": "it is for host discovery, which is not there yet",
    "cooldown_range": "it is for hosts that fail; all ranks run on this host",
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
