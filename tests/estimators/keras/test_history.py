"""The epochs of a Keras training, as Keras gives them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

pytest.importorskip("keras")


from spark_estimator.estimators.keras.history import KerasHistory, describe_epoch, flatten_entry, to_history

ENTRIES = [
    {"epoch": 0, "train": {"loss": 0.5}, "validation": {"loss": 0.75}},
    {"epoch": 1, "train": {"loss": 0.25}, "more": {"lr": 0.1}},
]


def test_entries_become_lists_by_name() -> None:
    history = to_history("history", ENTRIES)
    assert history == {"loss": [0.5, 0.25], "val_loss": [0.75, None], "lr": [None, 0.1]}
    assert history.to_rows() == [{"epoch": 0, "loss": 0.5, "val_loss": 0.75}, {"epoch": 1, "loss": 0.25, "lr": 0.1}]
    assert to_history("history", history) == history and to_history("history", None) == KerasHistory()
    assert KerasHistory().to_rows() == []


def test_numbers_become_lists() -> None:
    assert to_history("history", {"loss": 0.5, "auc": numpy.ones(2)}) == {"loss": [0.5], "auc": [1.0, 1.0]}
    assert to_history("history", [0.5, 0.25]) == {"loss": [0.5, 0.25]}


@pytest.mark.parametrize("value", ["loss", 3, ["low"], {"loss": "low"}])
def test_other_values_are_refused(value: Any) -> None:
    words = "must be a (dict from each metric's name to its values|number, or a list with a number for each epoch)"
    with pytest.raises(TypeError, match=f"history.* {words}; got"):
        to_history("history", value)


def test_an_epoch_in_one_line() -> None:
    assert flatten_entry(ENTRIES[0]) == {"loss": 0.5, "val_loss": 0.75}
    assert describe_epoch(ENTRIES[1], 5) == "epoch 2/5, loss 0.25, lr 0.1"
