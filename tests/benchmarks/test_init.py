"""The benchmark of ``init()`` has a line for each number of ranks."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("gloo", [True, False])
def test_a_line_for_each_number_of_ranks(gloo: bool) -> None:
    words = ["--np", "2,3", "--rounds", "1", *(() if gloo else ("--no-gloo",))]
    command = [sys.executable, "-m", "benchmarks.launchers.init", *words]
    shown = subprocess.run(command, timeout=100, check=True, capture_output=True, text=True).stdout
    seconds = r" +[0-9.]+ s \([0-9.]+ to [0-9.]+\)"
    for ranks in (2, 3):
        assert re.search(rf"^ +{ranks} {seconds}{seconds if gloo else ''} +\d+$", shown, re.MULTILINE), shown
