"""The benchmark of waiting ranks prints a figure for each state and connection."""

from __future__ import annotations

import pytest

from benchmarks import idle


def test_each_state_has_a_figure(capsys: pytest.CaptureFixture[str]) -> None:
    idle.main(["--seconds", "0.2"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "percent of a core"
    assert [line[:17].strip() for line in lines] == list(idle.CONNECTIONS)
    for line in lines:
        percents = [float(word) for word in line[17:].split()]
        assert len(percents) == len(idle.STATES)
        assert all(0 <= percent < 100 for percent in percents)
