"""What Windows, where drivers run but no ranks, does not have: the names can be imported, and fail when used."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from typing import Any

try:
    import fcntl as fcntl
    import resource as resource
except ImportError:
    fcntl = resource = None  # type: ignore[assignment]

#: There an open file can be neither renamed nor removed, and a folder cannot be opened.
IS_WINDOWS = os.name == "nt"
libc: Any = None if IS_WINDOWS else ctypes.CDLL(None, use_errno=True)
AF_UNIX: int | None = getattr(socket, "AF_UNIX", None)
#: What ends a process of an executor, by Linux's number: other systems have other numbers, Windows few names.
_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG "
    "XCPU XFSZ VTALRM PROF WINCH IO PWR SYS"
)
SIGNALS = {number: f"SIG{name}" for number, name in enumerate(_NAMES.split(), 1)}
SIGKILL = 9
#: As `os.register_at_fork`, where processes fork.
register_at_fork: Callable[..., None] = getattr(os, "register_at_fork", lambda **_: None)
