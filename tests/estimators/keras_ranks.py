"""Trainings as `KerasEstimator.fit` runs them, without Spark, for ``tests/estimators/keras/test_training.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet

from tests.estimators.histories import drop_times

ROWS, WIDTH = 41, 3


def table() -> tuple[Any, Any, Any]:
    """[41, 3] features, [41] labels, [41] weights."""
    chance = numpy.random.default_rng(0)
    rows = chance.standard_normal((ROWS, WIDTH)).astype(numpy.float32)
    return rows, rows.sum(1), chance.integers(0, 3, ROWS).astype(numpy.float32)


def write_table(folder: Path) -> None:
    rows, labels, weights = table()
    content = pyarrow.table({"x": rows.tolist(), "y": labels, "z": labels > 0, "w": weights})
    pyarrow.parquet.write_table(content, folder / "rows.parquet")
    pyarrow.parquet.write_table(content.slice(0, 3), folder / "few.parquet")


def linear() -> Any:
    import keras

    kernel = keras.initializers.GlorotUniform(seed=3)
    return keras.Sequential(
        [keras.layers.Input((WIDTH,)), keras.layers.Dense(1, kernel_initializer=kernel, name="only")]
    )


def chancy() -> Any:
    """Its training depends on chance, and its validation on what each rank has counted."""
    import keras

    def kernel() -> Any:
        return keras.initializers.GlorotUniform(seed=3)

    return keras.Sequential(
        [
            keras.layers.Input((WIDTH,)),
            keras.layers.Dense(8, kernel_initializer=kernel(), name="wide"),
            keras.layers.BatchNormalization(name="batch"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1, kernel_initializer=kernel(), name="last"),
        ]
    )


def two_outputs() -> Any:
    import keras

    inputs = keras.Input((WIDTH,))
    first = keras.layers.Dense(1, kernel_initializer="ones", name="first")(inputs)
    second = keras.layers.Dense(1, kernel_initializer="ones", activation="sigmoid", name="second")(inputs)
    return keras.Model(inputs, [first, second])


def trained(folder: str, model: Any, **changed: Any) -> Any:
    """The result of `train` on this rank with rows of ``rows.parquet``."""
    from spark_estimator import KerasEstimator
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, find_files
    from spark_estimator.data.row_encoder import RowEncoder
    from spark_estimator.estimators.keras.start import train
    from spark_estimator.estimators.train_spec import TrainSpec
    from spark_estimator.store import Store

    of_estimator = ("optimizer", "loss", "metrics", "callbacks", "checkpoint_callback", "learning_rate")
    labels = changed.pop("label_cols", ["y"])
    parameters = {
        "optimizer": "sgd",
        "loss": "mse",
        **{name: changed.pop(name) for name in of_estimator if name in changed},
    }
    estimator = KerasEstimator(model=model, label_cols=labels, **parameters)
    weighted = changed.pop("weighted", False)
    names = ["x", *labels, *(["w"] if weighted else [])]
    fields = [Field((name,), (f"c{place}",), (1,), "float32", ()) for place, name in enumerate(names)]
    fields[0] = Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,))
    rows = find_files(f"{folder}/{changed.pop('rows', 'rows')}.parquet")
    stored = changed.pop("stored", False)
    spec = {
        "inputs": (fields[0],),
        "labels": tuple(fields[1 : 1 + len(labels)]),
        "weight": fields[-1] if weighted else None,
        **dict.fromkeys(("train_steps", "validation_steps", "patience", "held_source", "checkpoint_steps")),
        "held_share": 0.0,
        "seed": 5,
        "batch_size": 4,
        "val_batch_size": 4,
        "epochs": 2,
        "shuffle": True,
        "verbose": 0,
        "backward_passes_per_step": 1,
        "use_gpu": False,
        "restore_best": False,
        "large": 1 << 40,
        "store": Store.create(f"{folder}/store") if stored else None,
        "run_id": "run",
        "source": FileRows(rows, RowEncoder(tuple(names), tuple(fields))),
        "framework": estimator._make_training().framework,
    }
    return train(TrainSpec(**{**spec, **changed}))


def opened(result: Any) -> Any:
    from spark_estimator.estimators.keras.objects import load_dumped

    return load_dumped(result.state, {}, compile=True)


def alike(ones: Any, others: Any) -> bool:
    """Bit for bit."""
    return all(weight.tobytes() == other.tobytes() for weight, other in zip(ones, others, strict=True))


def equal_to_one_process(rank: int, folder: str) -> None:
    """One batch of everything: 41 rows on 2 ranks are 21 and 20, weighted, and clipped after the exchange."""
    import keras

    model = linear()
    before = model.get_weights()
    momentum = keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.05, 1, 0.5), momentum=0.5, weight_decay=0.01
    )
    result = trained(
        folder, model, batch_size=ROWS, epochs=3, weighted=True, optimizer=momentum, metrics=["mae"], seed=1
    )
    assert alike(before, model.get_weights()) and not model.compiled, "the user's model stays as it is"
    if rank:
        assert result is None
        return
    plain = linear()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    plain.compile(keras.optimizers.SGD(schedule, momentum=0.5, weight_decay=0.01), "mse", metrics=["mae"])
    rows, labels, weights = table()
    history = plain.fit(rows, labels[:, None], sample_weight=weights, batch_size=ROWS, epochs=3, verbose=0)
    epochs = [entry["train"] for entry in result.history]
    for name in ("loss", "mae"):
        assert numpy.allclose([weight[name] for weight in epochs], history.history[name], rtol=1e-5), (name, epochs)
    back = opened(result)
    for weight, other in zip(back.get_weights(), plain.get_weights(), strict=True):
        assert numpy.allclose(weight, other, rtol=1e-4, atol=1e-6)
    assert type(back.optimizer).__module__.startswith("keras."), "no trace of this package"
    assert int(back.optimizer.iterations) == 3
    config = back.optimizer.get_config()["learning_rate"]["config"]
    assert config["initial_learning_rate"] == 0.05, "the user's rate, not the multiplied one"


def exact_sums(rank: int, folder: str) -> None:
    """A learning rate of 0, batches of 4 of uneven rows: every average is one over known rows, AUC too."""
    import keras

    parameters = {"optimizer": keras.optimizers.SGD(0.0), "loss": ["mse", "binary_crossentropy"]}
    metrics: list[Any] = [["mae"], [keras.metrics.AUC(name="auc"), "accuracy"]]
    result = trained(
        folder, two_outputs(), label_cols=["y", "z"], metrics=metrics, held_share=0.25, epochs=1, **parameters
    )
    whole = trained(folder, two_outputs(), label_cols=["y", "z"], metrics=metrics, epochs=1, **parameters)
    if rank:
        return
    model = two_outputs()
    model.compile(
        keras.optimizers.SGD(0.0), parameters["loss"], metrics=[["mae"], [keras.metrics.AUC(name="auc"), "accuracy"]]
    )
    rows, labels, _ = table()
    logs = model.evaluate(rows, [labels[:, None], (labels > 0)[:, None]], batch_size=ROWS, verbose=0, return_dict=True)
    (entry,) = whole.history
    assert set(entry["train"]) == set(logs), (entry, logs)
    for name, value in logs.items():
        assert numpy.isclose(entry["train"][name], value, rtol=1e-5), (name, entry["train"][name], value)
    (entry,) = result.history
    for name in ("loss", "first_loss", "first_mae", "second_accuracy"):  # 31 rows and 10
        together = (31 * entry["train"][name] + 10 * entry["validation"][name]) / 41
        assert numpy.isclose(together, logs[name], rtol=1e-5), name


def few_rows(rank: int, folder: str) -> None:
    """3 rows on 2 ranks, one at a time: in the second step one rank has none; two passes make a step."""
    import keras

    for passes in (1, 2):
        result = trained(
            folder,
            linear(),
            rows="few",
            batch_size=1,
            epochs=2,
            shuffle=False,
            backward_passes_per_step=passes,
            optimizer=keras.optimizers.SGD(0.05),
            metrics=["mae"],
        )
        if rank:
            continue
        rows, labels, _ = table()
        weights = linear().get_weights()
        losses = []
        for _ in range(2):
            total, gathered = 0.0, [numpy.zeros((WIDTH, 1)), numpy.zeros(1)]
            for places in ([0, 2], [1]):  # the ranks' first rows, then the rest
                x, y = rows[places], labels[places][:, None]
                errors = x @ weights[0] + weights[1] - y
                total += float((errors**2).sum())
                gradients = [2 * x.T @ errors / len(places), 2 * errors.mean(0)]
                gathered = [total + gradient for total, gradient in zip(gathered, gradients, strict=True)]
                if passes == 1 or places == [1]:
                    weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gathered, strict=True)]
                    gathered = [0 * gradient for gradient in gathered]
            losses.append(total / 3)
        assert numpy.allclose([entry["train"]["loss"] for entry in result.history], losses, rtol=1e-4), (passes, losses)
        assert numpy.allclose(opened(result).get_weights()[0], weights[0], rtol=1e-4, atol=1e-6), passes


def goes_on(rank: int, folder: str) -> list[str]:
    """Interrupted within an epoch and between two of them, and resumed. Another run's checkpoint is refused."""
    import keras
    import pytest

    from spark_estimator.errors import DataError

    class Interrupting(keras.callbacks.Callback):
        def __init__(self, left: int) -> None:
            super().__init__()
            self.left = left

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.left -= 1
            if self.left < 0:
                raise InterruptedError

    parameters: dict[str, Any] = {
        "optimizer": keras.optimizers.Adam(0.01),
        "metrics": ["mae"],
        "held_share": 0.2,
        "epochs": 3,
        "backward_passes_per_step": 2,
        "restore_best": True,
    }
    whole = trained(folder, chancy(), **parameters)
    worst = trained(folder, chancy(), **parameters, monitor="train.mae", mode="max")
    first = trained(folder, chancy(), **{**parameters, "epochs": 1})
    assert rank or alike(opened(worst).get_weights(), opened(first).get_weights()), "the first has the largest error"
    parameters |= {"stored": True, "checkpoint_steps": 2}
    for after in (8, 4):  # of 5 batches an epoch: within the second, and the third
        with pytest.raises(InterruptedError):
            trained(folder, chancy(), **parameters, callbacks=[Interrupting(after)])
    refused = []
    for changed in (
        {"optimizer": keras.optimizers.Adam(0.1)},
        {"loss": "mae"},
        {"batch_size": 5},
        {"model": linear()},
    ):
        with pytest.raises(DataError) as refusal:
            trained(folder, **{"model": chancy(), **parameters, **changed})
        refused.append(str(refusal.value))
    resumed = trained(folder, chancy(), **parameters)
    if rank == 0:
        assert json.dumps(drop_times(resumed.history)) == json.dumps(drop_times(whole.history)), (
            resumed.history,
            whole.history,
        )
        assert alike(opened(resumed).get_weights(), opened(whole).get_weights())
    return refused


def resumes_what_callbacks_have_set(rank: int, folder: str) -> None:
    """Continues in an epoch in which a batch has stopped the training; with a callback that saves every 4 batches."""
    import keras
    import pytest

    class Ending(keras.callbacks.Callback):
        def __init__(self, fails: bool) -> None:
            super().__init__()
            self.fails = fails

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.fails and (self.epoch, batch) == (1, 4):
                raise InterruptedError

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 0 and (self.epoch, batch) == (1, 0):
                self.model.stop_training = True

    def run(fails: bool) -> Any:
        saving = keras.callbacks.ModelCheckpoint("x.keras", save_freq=4)
        settings = {"epochs": 4, "stored": True, "checkpoint_steps": 2, "checkpoint_callback": saving}
        return trained(folder, linear(), callbacks=[Ending(fails)], **settings)

    with pytest.raises(InterruptedError):
        run(fails=True)
    result = run(fails=False)
    assert rank != 0 or len(result.history) == 2


def callbacks_and_best(rank: int, folder: str) -> None:
    """Callbacks see all ranks' losses and end the training on all; checkpoint_callback's model is returned."""
    import keras

    from spark_estimator.keras.callbacks import BestModelCheckpoint

    class Ending(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            from spark_estimator.collectives import context

            logs["of_mine"] = 7
            self.model.stop_training = epoch == 1 and logs["val_loss"] > 0 and context.rank() == 1

    def run(epochs: int) -> Any:
        return trained(
            folder,
            linear(),
            callbacks=[Ending(), keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=1000.0)],
            checkpoint_callback=BestModelCheckpoint(monitor="val_loss"),
            learning_rate=0.6,  # 1.2 on two ranks: it gets worse
            held_share=0.2,
            epochs=epochs,
        )

    result, first = run(9), run(1)
    if rank:
        return
    assert [entry["more"]["of_mine"] for entry in result.history] == [7, 7]
    assert result.history[1]["validation"]["loss"] > result.history[0]["validation"]["loss"]
    back = opened(result)
    assert alike(back.get_weights(), opened(first).get_weights()), "the best epoch's"
    rates = [entry["more"]["learning_rate"] for entry in result.history]
    assert numpy.allclose(rates, 1.2), (rates, "those in force")
    rate = float(keras.ops.convert_to_numpy(back.optimizer.learning_rate))
    assert numpy.isclose(rate, 0.6), (rate, "of one process, in the best epoch")


def rates_that_user_code_sets(rank: int, folder: str) -> None:
    """Each epoch is one step on all rows: the numbers are those of Keras alone, at the rate times the ranks."""
    import keras

    from spark_estimator.collectives import context

    size = context.size()

    class Halving(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            optimizer.learning_rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate)) / 2

    def plateau() -> Any:
        return keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1000.0, min_lr=0.03)

    cases: dict[str, tuple[Any, Any]] = {
        "nothing": (lambda times: 0.05 * times, list),
        "LearningRateScheduler": (
            lambda times: 0.01 * times,
            lambda: [keras.callbacks.LearningRateScheduler(lambda epoch: 0.05)],
        ),
        "LearningRateScheduler of the present rate": (
            lambda times: 0.05 * times,
            lambda: [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)],
        ),
        "a callback": (lambda times: 0.05 * times, lambda: [Halving()]),
        "ReduceLROnPlateau": (lambda times: 0.05 * times, lambda: [plateau()]),
        "a schedule": (lambda times: keras.optimizers.schedules.CosineDecay(0.05 * times, 4, alpha=0.1), list),
    }
    for name, (rate_of, callbacks) in cases.items():
        parameters = {"batch_size": ROWS, "epochs": 4, "shuffle": False, "callbacks": callbacks()}
        result = trained(folder, linear(), optimizer=keras.optimizers.SGD(rate_of(1), momentum=0.5), **parameters)
        if rank:
            continue
        plain = linear()
        plain.compile(keras.optimizers.SGD(rate_of(size), momentum=0.5), "mse")
        rows, labels, _ = table()
        history = plain.fit(
            rows, labels[:, None], batch_size=ROWS, epochs=4, shuffle=False, verbose=0, callbacks=callbacks()
        ).history
        for weight, other in zip(opened(result).get_weights(), plain.get_weights(), strict=True):
            assert numpy.allclose(weight, other, rtol=1e-4, atol=1e-6), (name, weight, other)
        shown = [entry.get("more", {}).get("learning_rate") for entry in result.history]
        assert "learning_rate" not in history or numpy.allclose(shown, history["learning_rate"]), (name, shown)


def own_metrics_get_tensors(rank: int, folder: str) -> None:
    """As in Keras' own fit, also before the first step and in a validation."""
    import keras

    class Own(keras.metrics.Mean):
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            assert keras.ops.is_tensor(y_true) and keras.ops.is_tensor(y_pred)
            return super().update_state(keras.ops.abs(y_true - y_pred), sample_weight)

    result = trained(folder, linear(), metrics=[Own(name="own"), "mae"], held_share=0.2)
    if rank == 0:
        for part in ("train", "validation"):
            for entry in result.history:
                assert numpy.isclose(entry[part]["own"], entry[part]["mae"], rtol=1e-5), (part, entry)


def averages_weights(rank: int, folder: str, package: str = "keras") -> None:
    """``use_ema``: each epoch is one step on all rows, also of a run that resumes. The numbers are those of Keras' fit:
    it validates with the weights of the steps, and gives the model the averages at its end."""
    import importlib

    from spark_estimator.collectives import context
    from spark_estimator.data.fields import Field
    from spark_estimator.data.parquet import FileRows, find_files
    from spark_estimator.data.row_encoder import RowEncoder

    keras = importlib.import_module(package)
    size = context.size()
    rows, labels, _ = table()
    x, y = Field(("x",), ("c0",), (WIDTH,), "float32", (WIDTH,)), Field(("y",), ("c1",), (1,), "float32", ())
    held = FileRows(find_files(f"{folder}/few.parquet"), RowEncoder(("x", "y"), (x, y)))

    def model() -> Any:
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=3), name="only")
        return keras.Sequential([keras.layers.Input((WIDTH,)), dense])

    for run, frequency in (("never", None), ("every second step", 2)):

        def sgd(rate: float, frequency: int | None = frequency) -> Any:
            return keras.optimizers.SGD(rate, use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=frequency)

        parameters = {"batch_size": ROWS, "shuffle": False, "held_source": held}
        for epochs in (2, 5, 5):
            stored = {"epochs": epochs, "stored": True, "run_id": run}
            result = trained(folder, model(), optimizer=sgd(0.05), **parameters, **stored)
        last = keras.callbacks.ModelCheckpoint("model.keras")
        of_steps = trained(folder, model(), optimizer=sgd(0.05), epochs=5, checkpoint_callback=last, **parameters)
        if rank:
            continue
        plain = model()
        plain.compile(sgd(0.05 * size), "mse")
        seen: list[Any] = []
        noting = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(plain.get_weights()))  # noqa: B023
        history = plain.fit(
            rows, labels[:, None], ROWS, 5, 0, [noting], validation_data=(rows[:3], labels[:3, None]), shuffle=False
        ).history
        assert not numpy.allclose(seen[-1][0], plain.get_weights()[0], rtol=1e-3)
        for weight, other in zip(opened(result).get_weights(), plain.get_weights(), strict=True):
            assert numpy.allclose(weight, other, rtol=1e-4, atol=1e-6), (run, weight, other)
        for part, name in (("train", "loss"), ("validation", "val_loss")):
            assert numpy.allclose([entry[part]["loss"] for entry in result.history], history[name], rtol=1e-4), name
        for weight, other in zip(opened(of_steps).get_weights(), seen[-1], strict=True):
            assert numpy.allclose(weight, other, rtol=1e-4, atol=1e-6), (run, "what the callback has saved")


def schedules_begin_at_the_optimizer_s_rate(rank: int, folder: str) -> None:
    """As in Horovod, whose estimator replaces the callbacks' initial_lr by the rate times the number of ranks."""
    from spark_estimator.collectives import context
    from spark_estimator.keras.callbacks import LearningRateScheduleCallback, LearningRateWarmupCallback

    def rates(initial: float) -> list[float]:
        callbacks = [
            LearningRateWarmupCallback(initial_lr=initial, warmup_epochs=1),
            LearningRateScheduleCallback(initial, lambda epoch: 0.5, start_epoch=2),
        ]
        result = trained(folder, linear(), callbacks=callbacks, learning_rate=0.01, epochs=3)
        return [] if rank else [entry["more"]["lr"] / context.size() for entry in result.history]

    measured = rates(0.01), rates(0.02)
    assert rank or numpy.allclose(measured, [0.01, 0.01, 0.005]), measured


def resumes_with_its_ranks(rank: int, folder: str, epochs: int, expected: list[float]) -> None:
    """A run that resumes, also on another number of ranks; a callback halves the rate after the second epoch.

    Args:
        expected: the rates of its epochs here.
    """
    import keras

    class Halving(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            self.model.optimizer.learning_rate = rate / 2 if epoch == 2 else rate

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["rate"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    optimizer = keras.optimizers.SGD(0.08)
    result = trained(folder, linear(), optimizer=optimizer, callbacks=[Halving()], epochs=epochs, stored=True)
    if rank == 0:
        rates = [entry["more"]["rate"] for entry in result.history][-len(expected) :]
        assert numpy.allclose(rates, expected), (rates, expected)
        back = float(keras.ops.convert_to_numpy(opened(result).optimizer.learning_rate))
        assert numpy.isclose(back, 0.08 if epochs < 3 else 0.04), back


def keeps_a_rate_of_keras_2(rank: int, folder: str) -> None:
    """The rate that a callback has set is part of a checkpoint: it is no variable of Keras 2's optimizers."""
    import tf_keras

    class Halving(tf_keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                tf_keras.backend.set_value(self.model.optimizer.learning_rate, 0.02)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["rate"] = float(tf_keras.backend.get_value(self.model.optimizer.learning_rate))

    from spark_estimator.collectives import context

    for kind in (tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD):
        model = tf_keras.Sequential([tf_keras.layers.Input((WIDTH,)), tf_keras.layers.Dense(1)])
        run = {"stored": True, "run_id": kind.__module__}
        for epochs in (1, 2):
            result = trained(folder, model, optimizer=kind(0.5), callbacks=[Halving()], epochs=epochs, **run)
            if rank == 0:
                assert numpy.allclose([entry["more"]["rate"] for entry in result.history], 0.02), kind
                back = float(tf_keras.backend.get_value(opened(result).optimizer.learning_rate))
                assert numpy.isclose(back, 0.02 / context.size()), (kind, back)
