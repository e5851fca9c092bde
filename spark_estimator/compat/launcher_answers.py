"""Small functions of ``horovod.runner`` that have an answer here: which launchers there are, pickles as text, keys."""

from __future__ import annotations

import base64
import pickle
import secrets
from collections.abc import Mapping
from typing import Any

import cloudpickle


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Return False: this package does not use MPI."""
    return False


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Return False: this package does not use MPI."""
    return False


def is_jsrun_installed() -> bool:
    """Return False: this package does not use jsrun."""
    return False


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Return an object as a pickle in base64, as text or as bytes."""
    encoded = base64.b64encode(cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Load what `dumps_base64` made. Only for text from a source that you trust: a pickle can run any code."""
    return cloudpickle.loads(base64.b64decode(encoded))


def make_secret_key() -> bytes:
    """Return 32 random bytes."""
    return secrets.token_bytes(32)
