"""Keras's callback for the driver's log: the lines of two ranks."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import pytest

from spark_estimator import HorovodRunner


@pytest.mark.slow
def test_every_rank_tells_its_epochs_and_batches(capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed here")

    def train(per_batch_log: bool) -> Any:
        import os

        os.environ["KERAS_BACKEND"] = "torch"
        import keras
        import numpy
        from sparkdl.horovod.tensorflow.keras import LogCallback  # type: ignore[import-not-found]

        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        rows = numpy.ones((8, 3), "float32")
        model.fit(rows, rows[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[LogCallback(per_batch_log)])
        return float(model.evaluate(rows, rows[:, :1], verbose=0)[0])

    assert HorovodRunner(np=-2).run(train, per_batch_log=True) < 10
    output = capfd.readouterr().out
    for rank in (0, 1):
        lines = re.findall(rf"^\[{rank}\] (epoch .*)$", output, re.MULTILINE)
        assert len(lines) == 6, output
        for line, start in zip(
            lines,
            ["epoch 1 of 2, batch 1 of 2: ", "epoch 1 of 2, batch 2 of 2: ", "epoch 1 of 2 ended after "] * 2,
            strict=True,
        ):
            start = start if lines.index(line) < 3 else start.replace("epoch 1", "epoch 2")
            assert line.startswith(start), lines
            assert re.search(r": loss [\d.e+-]+, mae [\d.e+-]+$|: mae [\d.e+-]+, loss [\d.e+-]+$", line), line
    HorovodRunner(np=-1).run(train, per_batch_log=False)
    assert len(re.findall(r"^\[0\] epoch", capfd.readouterr().out, re.MULTILINE)) == 2
