"""A reader's work as plain values: shards, parts of row groups, orders of epochs, precision."""

from __future__ import annotations

import itertools
import pickle
import threading
from dataclasses import replace
from typing import Any

import numpy
import pytest

from spark_estimator.errors import DataError
from spark_estimator.extensions.petastorm.arguments import choose_fields
from spark_estimator.extensions.petastorm.dataset import find_dataset
from spark_estimator.extensions.petastorm.plan import ReadPlan
from spark_estimator.extensions.petastorm.transform import TransformSpec, transform_schema


@pytest.fixture
def plan(numbers: str) -> ReadPlan:
    """25 rows in row groups of 4, 4, 3, 4, 4, 4 and 2."""
    files = find_dataset(numbers)
    schema = choose_fields(files, None, "numbers")
    return ReadPlan(files, schema, schema, shuffle_row_groups=False)


def pages(plan: ReadPlan, first_epoch: int = 0, by_row: bool = False) -> list[list[int]]:
    return [page["n"].tolist() for page in plan.read_pages(first_epoch, by_row)]


def test_a_plan_travels_and_gives_the_same_rows(plan: ReadPlan) -> None:
    assert plan.columns == ("n", "small", "even", "half", "pair", "name")
    assert plan.shapes["pair"] == (None,) and plan.shapes["n"] == ()
    copy = pickle.loads(pickle.dumps(plan))
    assert (
        pages(copy)
        == pages(plan)
        == [*([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18], [19, 20, 21, 22], [23, 24])]
    )


@pytest.mark.parametrize("shards", [1, 3, 25, 30])
def test_shards_are_equal_and_together_all_rows(plan: ReadPlan, shards: int) -> None:
    of_shards = [replace(plan, shard=shard, shards=shards) for shard in range(shards)]
    rows = [list(itertools.chain.from_iterable(pages(each))) for each in of_shards]
    assert [len(each) for each in rows] == [each.rows for each in of_shards]
    assert {each.most_rows for each in of_shards} == {max(map(len, rows))}
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert list(itertools.chain.from_iterable(rows)) == list(range(25))


@pytest.mark.parametrize("parts", [1, 2, 4, 9])
def test_row_groups_in_parts(plan: ReadPlan, parts: int) -> None:
    result = pages(replace(plan, parts=parts))
    assert list(itertools.chain.from_iterable(result)) == list(range(25))
    assert max(map(len, result)) == -(-4 // parts) and all(result)


def test_epochs_have_orders_that_the_seed_determines(plan: ReadPlan) -> None:
    assert not plan.shuffles and pages(replace(plan, num_epochs=2)) == 2 * pages(plan)
    mixed = replace(plan, shuffle_row_groups=True, shuffle_rows=True, num_epochs=2, seed=3)
    assert mixed.shuffles
    first, second = pages(mixed)[:7], pages(mixed)[7:]
    assert first != second
    for epoch in (first, second):
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(25))
    assert pages(replace(mixed, num_epochs=1), first_epoch=1) == second
    assert pages(replace(mixed, num_epochs=1, seed=4)) != first
    endless = replace(plan, num_epochs=None).read_pages(0, False)
    assert [page["n"][0] for page in itertools.islice(endless, 8)] == [0, 4, 8, 11, 15, 19, 23, 0]


def test_threads_that_read_ahead_change_nothing(plan: ReadPlan) -> None:
    mixed = replace(plan, shuffle_row_groups=True, shuffle_rows=True, num_epochs=2)
    assert pages(replace(mixed, threads=3)) == pages(mixed)


def test_an_error_of_a_thread_and_an_early_end(plan: ReadPlan) -> None:
    before = threading.active_count()

    def failing(frame: Any) -> Any:
        if frame["n"][0] == 8:
            raise KeyError("broken")
        return frame

    spec = TransformSpec(failing)
    endless = replace(plan, num_epochs=None, threads=2, transform=spec)
    source = endless.read_pages(0, False)
    next(source)
    source.close()  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="broken"):
        list(endless.read_pages(0, False))
    assert threading.active_count() == before


@pytest.mark.parametrize("precision", [None, "float32", "float64"])
def test_fractions_in_one_precision(plan: ReadPlan, precision: str | None) -> None:
    page = next(iter(replace(plan, precision=precision).read_pages(0, False)))
    expected = {None: ("float64", "float32")}.get(precision, (precision, precision))
    assert (page["half"].dtype.name, page["pair"].dtype.name) == expected
    assert (page["n"].dtype.name, page["small"].dtype.name, page["even"].dtype.name) == ("int32", "int8", "bool")
    assert page["half"].tolist() == [0, 0.5, 1, 1.5]
    assert page["pair"].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3]]


def doubled(frame: Any) -> Any:
    frame["n"] = frame["n"] * 2
    return frame[["n"]]


def doubled_row(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": numpy.int32(row["n"] * 2)}


def test_a_transform_of_pages_and_of_rows(plan: ReadPlan) -> None:
    assert plan.transformer is None
    for batched, function in ((True, doubled), (False, doubled_row)):
        spec = TransformSpec(function, selected_fields=["n"])
        changed = replace(plan, transform=spec, result_schema=transform_schema(plan.schema, spec), batched=batched)
        assert pages(changed)[:2] == [[0, 2, 4, 6], [8, 10, 12, 14]]
        assert {tuple(page) for page in changed.read_pages(0, not batched)} == {("n",)}
