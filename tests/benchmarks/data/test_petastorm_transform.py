"""The benchmark of identity transforms: every kind of data is measured, and results are compared."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.data import petastorm_transform

pytestmark = pytest.mark.slow


def test_every_kind_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    petastorm_transform.main(["--rows", "3000", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    names = [line[:28].strip() for line in lines[2:]]
    kinds = ("numbers", "arrays", "mixed", "texts")
    assert names == [
        f"{what}, {kind}"
        for kind in kinds
        for what in ("loader", "reader", "rows")
        if (what, kind) != ("loader", "texts")
    ]
    assert petastorm_transform.cost([1.0, 2.0, 4.0], [1.1, 2.2, 8.0]) == pytest.approx(10)
