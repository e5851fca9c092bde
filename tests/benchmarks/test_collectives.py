"""The benchmark runs, checks its numbers, and prints a line for each op and size, with and without shared memory."""

from __future__ import annotations

import pytest

from spark_estimator.benchmarks import collectives


@pytest.mark.parametrize("channel", [[], ["--tcp"]])
def test_prints_a_line_for_each_op_and_size(channel: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    collectives.main(["--bytes", "4,40000", "--seconds", "0.01", *channel])
    printed = capsys.readouterr().out
    for op in collectives.OPS:
        for size in ("4", "40000"):
            lines = [line.split() for line in printed.splitlines() if line.split()[:2] == [op, size]]
            assert len(lines) == 1, printed
            ours, gloos, ratio = map(float, lines[0][2:5])
            assert ours > 0 and ratio == pytest.approx(gloos / ours, rel=0.1)
