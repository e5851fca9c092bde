"""Runs ``horovodrun`` as a person would, with this interpreter and this checkout."""

from __future__ import annotations

import subprocess
import sys

from tests.launch import clusters


def horovodrun(*arguments: str, timeout: float = 100, **env: str | None) -> subprocess.CompletedProcess[str]:
    """What became of ``horovodrun *arguments``; None removes a variable."""
    return subprocess.run(
        [sys.executable, "-m", "spark_estimator.launch.cli.main", *arguments],
        env=clusters.environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
