"""Runs a program in a fresh interpreter, as a user would, and gives what it printed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def fresh(
    program: str,
    *,
    path: Sequence[str | Path] = (ROOT,),
    cwd: str | Path = os.path.sep,
    python: str | Path = sys.executable,
) -> str:
    """What `program` prints, in a new interpreter with `path` as its PYTHONPATH. A failure shows its stderr."""
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(program)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
