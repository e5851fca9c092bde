"""The user's callbacks of a PyTorch training, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.callbacks import Callback, TorchCallbacks


@pytest.fixture
def alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class Ends(Callback):
    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.epochs: list[int] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> Any:
        self.epochs.append(epoch)
        return self.answer


def test_methods_that_are_missing_are_left_out() -> None:
    class Begins:
        def on_train_begin(self, *args: Any) -> int:
            return len(args)

    callbacks = TorchCallbacks([Begins(), object(), Callback()])
    assert callbacks.call("on_train_begin", 1, 2) == [2, None, None]
    assert callbacks.call("on_train_end") == [None, None, None]


def test_without_callbacks_nothing_is_exchanged() -> None:
    assert not hvd.is_initialized()
    assert TorchCallbacks([]).call_epoch_end(0, {}) is False


# What comparing a loss with a number gives, if one of them is numpy's or torch's.
NUMBERS: list[tuple[list[Any], bool]] = [
    ([None, numpy.float64(2.0) > 1.0], True),
    ([None, torch.tensor(2.0) > 1.0], True),
    ([numpy.float64(2.0) > 3.0, torch.tensor(1)], False),
]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("answers", "ends"), [([None, True], True), ([None, False], False), ([1, "yes"], False), *NUMBERS]
)
def test_only_true_ends_the_training(answers: list[Any], ends: bool) -> None:
    callbacks = [Ends(answer) for answer in answers]
    assert TorchCallbacks(callbacks).call_epoch_end(3, {"epoch": 3}) is ends
    assert [callback.epochs for callback in callbacks] == [[3], [3]], "each is called, also behind one that ends it"


def test_a_batch_is_reported_to_callbacks_that_want_it() -> None:
    class Counting(Callback):
        def __init__(self) -> None:
            self.seen: list[tuple[Any, ...]] = []

        def on_batch_begin(self, step: int) -> None:
            self.seen.append((step,))

        def on_batch_end(self, step: int, loss: float) -> None:
            self.seen.append((step, loss))

    counting = Counting()
    callbacks = TorchCallbacks([Callback(), counting, object()])
    for method, arguments in (("on_batch_begin", (3,)), ("on_batch_end", (3, 0.5))):
        call = callbacks.find_calls(method)
        assert call is not None
        call(*arguments)
        assert TorchCallbacks([Callback(), object()]).find_calls(method) is None, "a step costs nothing then"
    assert counting.seen == [(3,), (3, 0.5)]
