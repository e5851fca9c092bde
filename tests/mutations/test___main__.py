"""Which mutations are tried."""

from __future__ import annotations

import datetime

import pytest

from tests.mutations.__main__ import MUTATIONS, ROTATING, main, mutations_of


def test_the_mutations_of_rows() -> None:
    today = datetime.date(2026, 1, 1)
    assert {mutation.row for mutation in mutations_of(["1", "S14"], today)} == {"1", "S14"}
    assert mutations_of([], today) == list(MUTATIONS)


def test_in_turn_each_row_with_quick_ones() -> None:
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=day) for day in range(60)]
    chosen = [mutations_of([ROTATING], day) for day in days]
    assert all(len({mutation.row for mutation in mutations}) == 1 for mutations in chosen)
    quick = {mutation for mutation in MUTATIONS if mutation.is_quick}
    assert len(quick) > 40
    assert {mutation for mutations in chosen for mutation in mutations} == quick


def test_a_row_that_is_in_no_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["1", "S99"])
    assert "there is no row S99 in the tables" in capsys.readouterr().err
