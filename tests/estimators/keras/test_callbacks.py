"""The user's Keras callbacks, on one rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

pytest.importorskip("keras")

import keras

from spark_estimator import KerasEstimator
from spark_estimator.collectives import context
from spark_estimator.estimators.keras.callbacks import KerasCallbacks
from spark_estimator.estimators.keras.checkpoint import KerasForm
from spark_estimator.estimators.keras.parts import make_parts


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
    parts = make_parts(KerasEstimator(model=net, label_cols=["y"], **parameters)._value)[0]
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
    state = callbacks.get_state()
    assert state["saves"]["best"] == 0.5 and state["file"].dtype == numpy.uint8 and len(state["file"])
    other = network()
    resumed = callbacks_of(other, checkpoint_callback=saves)
    resumed.restore(state)
    for model, kept in ((net, callbacks), (other, resumed)):
        model.optimizer.learning_rate = 0.1
        kept.load_best_weights()
        assert float(model.optimizer.learning_rate) == 0.25  # of one of the two ranks that trained the best epoch
        assert all(numpy.allclose(value, weight) for value, weight in zip(model.get_weights(), best, strict=True))


def test_without_a_callback_that_saves_there_is_no_state() -> None:
    callbacks = callbacks_of(network())
    state = callbacks.get_state()
    assert state == {"attributes": [], "comparisons": []}
    callbacks.restore(state)
    callbacks.load_best_weights()


class Stateful(keras.callbacks.Callback):  # type: ignore[misc]
    """Has attributes of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.limit = 1, 5
        self.recent: Any = [1, 2]
        self.values = numpy.zeros(2)
        self.compare: Any = None
        self.function = lambda: 1
        self.lock: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.count = 0
        self.lock = threading.Lock()


def test_what_callbacks_have_counted_is_part_of_a_checkpoint() -> None:
    first, second = (callbacks_of(network(), callbacks=[Stateful()]) for _ in range(2))
    (before,), (after,) = first._on_all, second._on_all
    for callbacks in (first, second):
        callbacks.on_train_begin()
    before.count += 3
    before.recent.append(3)
    before.values += 1
    before.compare = keras.ops.less
    before.lock = threading.Lock()
    after.limit = 7  # the user has changed it since
    lock, function = after.lock, after.function
    content = KerasForm().unpack(KerasForm().to_stream({"callback": first.get_state()}).getvalue())
    assert set(content["callback"]["attributes"][0]) == {"count", "recent", "values"}
    second.restore(content["callback"])
    assert (after.count, after.recent, after.values.tolist(), after.limit) == (3, [1, 2, 3], [1, 1], 7)
    assert after.compare is keras.ops.less and after.lock is lock and after.function is function
