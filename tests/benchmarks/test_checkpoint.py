"""The benchmark of checkpoints runs, and checks what it has written."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks import checkpoint


def test_it_prints_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.main(["--mb", "4", "--rate", "20", "--steps", "8", "--every", "4", "--step-ms", "5", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("4 MB on 1 rank(s)")
    assert [line[:24].strip() for line in lines[2:]] == [*checkpoint.WAYS, "torch.save"]
    assert 1 <= int(lines[3].split()[1]) <= 2  # a copy that would only wait may be left out
