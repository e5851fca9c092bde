"""The tables of faults and demands name tests that exist, and each row has mutations that still apply to the code."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import MUTATIONS, ROOT
from tests.mutations.mutation import PAGES, Mutation, exists, function_of, rows

FAULTS, SECURITY = (rows((ROOT / page).read_text()) for page in PAGES)
ROWS = FAULTS | SECURITY


@pytest.mark.parametrize(
    ("table", "numbers"),
    [(FAULTS, [str(number) for number in range(1, 38)]), (SECURITY, [f"S{number}" for number in range(1, 16)])],
    ids=["faults", "security"],
)
def test_every_line_names_tests_that_exist(table: dict[str, list[str]], numbers: list[str]) -> None:
    assert list(table) == numbers
    assert all(table.values()), [number for number, tests in table.items() if not tests]
    missing = [test for tests in table.values() for test in tests if not exists(ROOT, test)]
    assert not missing, "\n" + "\n".join(missing)


def test_a_test_that_is_gone_is_noticed() -> None:
    assert exists(ROOT, "tests/mutations/test_tables.py::test_a_test_that_is_gone_is_noticed")
    assert not exists(ROOT, "tests/mutations/test_tables.py::test_that_is_nowhere")
    assert not exists(ROOT, "tests/test_nowhere.py::test_a_test_that_is_gone_is_noticed")
    assert not exists(ROOT, "native/tests/transport/frame_test.cc::ThatIsNowhere")


def test_every_line_has_a_mutation() -> None:
    assert set(ROWS) == {mutation.row for mutation in MUTATIONS}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.row}: {mutation.breaks}")
def test_each_mutation_applies_and_its_tests_are_those_of_its_row(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.applied(text) != text
    assert mutation.tests
    assert not [test for test in mutation.tests if function_of(test) not in ROWS[mutation.row]]
