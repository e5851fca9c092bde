"""The user's Keras callbacks, on one rank."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import KerasEstimator
from spark_estimator.collectives import context
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.parts import parts_of


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


class Notes(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds a number and a text to the logs; ends the training after the epoch 1."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["doubled"] = 2 * logs["loss"]
        logs["text"] = "no number"
        self.model.stop_training = epoch == 1


def network() -> Any:
    net = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net


def callbacks_of(net: Any, **parameters: Any) -> KerasCallbacks:
    parts = parts_of(KerasEstimator(model=net, label_cols=["y"], **parameters)._value)[0]
    callbacks = KerasCallbacks(parts, net, epochs=3, steps=2)
    callbacks.on_train_begin()
    return callbacks


def test_numbers_that_callbacks_add_are_in_the_history() -> None:
    callbacks = callbacks_of(network(), callbacks=[Notes()])
    entries: list[dict[str, Any]] = [{"epoch": epoch, "train": {"loss": 0.5}} for epoch in range(2)]
    ends = []
    for epoch, entry in enumerate(entries):
        callbacks.on_epoch_end(epoch, entry)
        ends.append(callbacks.want_to_stop)
    assert ends == [False, True]
    assert entries[0] == {"epoch": 0, "train": {"loss": 0.5}, "more": {"doubled": 1.0}}


def test_the_model_that_was_saved_last_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network()
    net.optimizer.learning_rate = 0.5
    saves = keras.callbacks.ModelCheckpoint("ignored.keras", monitor="loss", save_best_only=True)
    callbacks = callbacks_of(net, checkpoint_callback=saves)
    callbacks.on_epoch_begin(0)
    with monkeypatch.context() as patch:
        patch.setattr(context, "size", lambda: 2)
        callbacks.on_epoch_end(0, {"epoch": 0, "train": {"loss": 0.5}})
    assert float(net.optimizer.learning_rate) == 0.5
    best = net.get_weights()
    net.set_weights([weight + 1 for weight in best])
    callbacks.on_epoch_begin(1)
    callbacks.on_epoch_end(1, {"epoch": 1, "train": {"loss": 0.75}})
    state = callbacks.state()
    assert state["best"] == 0.5 and state["file"].dtype == numpy.uint8 and len(state["file"])
    other = network()
    resumed = callbacks_of(other, checkpoint_callback=saves)
    resumed.take(state)
    for model, kept in ((net, callbacks), (other, resumed)):
        model.optimizer.learning_rate = 0.1
        kept.give_back()
        assert float(model.optimizer.learning_rate) == 0.25  # of one of the two ranks that trained the best epoch
        assert all(numpy.allclose(value, weight) for value, weight in zip(model.get_weights(), best, strict=True))


def test_without_a_callback_that_saves_there_is_no_state() -> None:
    callbacks = callbacks_of(network())
    assert callbacks.state() == {}
    callbacks.take({})
    callbacks.give_back()


class Stateful(keras.callbacks.Callback):  # type: ignore[misc]
    """Has attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 1
        self.recent: Any = deque([1, 2], maxlen=3)
        self.sums = defaultdict(int, a=1)
        self.small, self.large = numpy.zeros(2), numpy.zeros(1 << 18)
        self.compare = keras.ops.less
        self.function = lambda: 1

    def on_train_begin(self, logs: Any = None) -> None:
        self.lock = threading.Lock()


def test_a_process_in_the_place_of_a_lost_one_continues_another_s_callbacks() -> None:
    first, second = (callbacks_of(network(), callbacks=[Stateful()]) for _ in range(2))
    (before,), (after,) = first._on_all, second._on_all
    attributes = first.attributes()
    before.count += 1
    before.recent.append(3)
    before.sums["b"] += 1
    before.small += 1
    before.compare = None
    lock, function = after.lock, after.function
    for callbacks, callback in ((second, after), (first, before)):
        callbacks.take_attributes(attributes)
        assert (callback.count, callback.recent, callback.sums) == (1, deque([1, 2]), {"a": 1})
        assert callback.recent.maxlen == 3 and callback.sums["absent"] == 0
        assert not callback.small.any() and callback.compare is keras.ops.less
    assert "lock" not in attributes[0] and "function" not in attributes[0] and "_model" not in attributes[0]
    assert after.lock is lock and after.function is function
    assert attributes[0]["large"] is before.large, "not copied"
    assert after.recent is not before.recent


def test_a_process_that_becomes_rank_0_calls_checkpoint_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_estimator.keras.callbacks import BestModelCheckpoint

    net = network()
    with monkeypatch.context() as other_rank:
        other_rank.setattr(context, "rank", lambda: 1)
        callbacks = callbacks_of(net, checkpoint_callback=BestModelCheckpoint(monitor="loss", save_weights_only=True))
        callbacks.on_epoch_end(0, {"train": {"loss": 3.0}})
        assert callbacks.saves_best and callbacks.state() == {}
    callbacks.take_rank()
    callbacks.take({"file": numpy.empty(0, numpy.uint8), "best": 2.0})  # what the lost rank 0 had
    callbacks.on_train_begin()
    entry: dict[str, Any] = {"train": {"loss": 2.5}}
    callbacks.on_epoch_end(1, entry)
    assert callbacks.state()["best"] == 2.0 and not len(callbacks.state()["file"])
    callbacks.on_epoch_end(2, {"train": {"loss": 1.0}})
    state = callbacks.state()
    assert state["best"] == 1.0 and len(state["file"])
    callbacks.take_rank()
    assert callbacks.state()["best"] == 1.0, "it keeps what it has"
