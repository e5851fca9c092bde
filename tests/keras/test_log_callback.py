"""Keras's callback for the driver's log: what it says on two ranks, and what is said where Keras is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from tests.compat.interpreter import ROOT, fresh


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
        told = re.findall(rf"^\[{rank}\] (epoch .*)$", output, re.MULTILINE)
        assert len(told) == 6, output
        for line, start in zip(
            told,
            ["epoch 1 of 2, batch 1 of 2: ", "epoch 1 of 2, batch 2 of 2: ", "epoch 1 of 2 ended after "] * 2,
            strict=True,
        ):
            start = start if told.index(line) < 3 else start.replace("epoch 1", "epoch 2")
            assert line.startswith(start), told
            assert re.search(r": loss [\d.e+-]+, mae [\d.e+-]+$|: mae [\d.e+-]+, loss [\d.e+-]+$", line), line
    HorovodRunner(np=-1).run(train, per_batch_log=False)
    assert len(re.findall(r"^\[0\] epoch", capfd.readouterr().out, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("missing", "advice"),
    [("keras", "pip install 'spark-estimator[keras]'"), ("tensorflow", "set KERAS_BACKEND (torch, jax, tensorflow)")],
)
def test_what_is_missing_is_told_with_what_to_do(missing: str, advice: str, tmp_path: Path) -> None:
    (tmp_path / "keras.py").write_text(f'raise ModuleNotFoundError("No module named {missing!r}", name={missing!r})')
    printed = fresh(
        """
        from spark_estimator.compat import install
        install()
        try:
            import sparkdl.horovod.tensorflow.keras
            sparkdl.horovod.tensorflow.keras.LogCallback
        except ImportError as error:
            print(error)
        """,
        path=(tmp_path, ROOT),
    )
    assert f"No module named '{missing}'" in printed and advice in printed and len(printed.splitlines()) == 1
