"""Code that runs as another user of this machine."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest

NOBODY = 65_534


def as_another_user(function: Callable[[], object]) -> None:
    """Calls a function in a child process of another user; only root can."""
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.umask(0)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the other user's part failed: see the traceback"
