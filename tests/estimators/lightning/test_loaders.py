"""Batches as dicts from the names of columns to tensors."""

from __future__ import annotations

import numpy
import pytest
import torch

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")


from spark_estimator.data.fields import Field
from spark_estimator.data.rank.rank_rows import RankRows
from spark_estimator.estimators.lightning.loaders import RowLoader, get_inputs, name_batch
from tests.estimators.specs import X, Y, spec_of

BOTH = Field(("a", "b"), ("c0", "c1"), (1, 2), "float32", (3,))
WEIGHT = Field(("w",), ("c9",), (1,), "float32", (1,))


def test_columns_side_by_side_are_given_apart_and_put_together_again() -> None:
    tensors = [torch.arange(6.0).reshape(2, 3), torch.ones(2), torch.tensor([[3.0], [4.0]])]
    batch = name_batch([BOTH], [Y], WEIGHT, tensors)
    assert list(batch) == ["a", "b", "y", "w"]
    assert batch["a"].tolist() == [[0.0], [3.0]] and batch["b"].shape == (2, 2) and batch["w"].tolist() == [3.0, 4.0]
    assert torch.equal(get_inputs([BOTH], batch)[0], tensors[0])


def test_a_column_that_is_feature_and_label_is_what_the_feature_is() -> None:
    label = Field(("x",), ("c0",), (3,), "float32", (3,))
    batch = name_batch([X], [label], None, [torch.zeros(2, 3), torch.ones(2, 3)], [[-1, 3]])
    assert list(batch) == ["x"] and batch["x"].sum() == 0
    assert name_batch([X], [Y], None, [torch.zeros(2, 3), torch.ones(2)], [[-1, 1]])["y"].shape == (2, 1)


def rows_of(counts: tuple[int, ...], rank: int) -> RankRows:
    count = counts[rank]
    features = numpy.arange(3 * count, dtype=numpy.float32).reshape(count, 3)
    return RankRows(([features], [features[:, :1]]), numpy.arange(count), counts, rank, read=counts)


def test_a_rank_without_rows_has_a_batch_that_does_not_count() -> None:
    loaders = [RowLoader(rows_of((3, 2), rank), spec_of(), None, 2, None, None) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [2, 2]
    for step in range(2):
        counted = [loader.count_rows(step) for loader in loaders]
        assert sum(loader.compute_factor(step) for loader in loaders) == pytest.approx(2), (
            "the average of the ranks is 1"
        )
        assert [loader.compute_factor(step) > 0 for loader in loaders] == [rows > 0 for rows in counted]
    assert sum(loader.count_rows(step) for loader in loaders for step in range(2)) == 5


def test_each_epoch_has_its_order() -> None:
    loader = RowLoader(rows_of((20,), 0), spec_of(), 3, 20, None, None)
    orders = []
    for epoch in (0, 0, 1):
        loader.enter(epoch)
        orders.append(next(iter(loader))["x"][:, 0].tolist())
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])


@pytest.mark.parametrize("enters", [False, True])
def test_an_epoch_continues_after_the_batches_of_its_state(enters: bool) -> None:
    """Lightning calls the hook at the begin of an epoch that continues, or does not, depending on its version."""
    places: list[int] = []
    loader = RowLoader(rows_of((20,), 0), spec_of(), 3, 4, None, None, places.append)
    loader.enter(7)
    batches = [batch["x"][:, 0].tolist() for batch in loader]
    assert len(batches) == 5 and places == [1, 2, 3, 4] and loader.count_rows_done(3) == 12

    other = RowLoader(rows_of((20,), 0), spec_of(), 3, 4, None, None, places.append)
    other.load_state_dict({"epoch": 7, "done": 3})
    iter(other)  # which Lightning throws away
    if enters:
        other.enter(7)
    places.clear()
    rest = iter(other)
    assert next(rest)["x"][:, 0].tolist() == batches[3] and other.state_dict() == {"epoch": 7, "done": 3}
    assert [batch["x"][:, 0].tolist() for batch in rest] == batches[4:] and places == [3, 4]
    other.enter(8)
    assert len(list(other)) == 5, "the next epoch is whole"
