"""The pictures of a run."""

from __future__ import annotations

import builtins
import importlib.util
import io
from typing import Any

import pytest

from spark_estimator.estimators.history import Epochs, History
from spark_estimator.estimators.keras.history import KerasHistory, to_history
from spark_estimator.estimators.tracking.plots import draw_history

pytest.importorskip("matplotlib")


def history(*metrics: str, epochs: int = 3, validation: bool = True) -> History:
    values = {"loss": 0.5, "metrics": dict.fromkeys(metrics, 0.25)}
    parts = {"train": values, **({"validation": values} if validation else {})}
    return History({"epoch": epoch, **parts} for epoch in range(epochs))


def lines(figure: Any) -> dict[str, list[float]]:
    (axes,) = figure.axes
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}


def test_a_picture_of_the_losses_and_one_of_each_metric() -> None:
    pictures = draw_history(history("accuracy", "mae"))
    assert list(pictures) == ["plots/loss.png", "plots/accuracy.png", "plots/mae.png"]
    assert lines(pictures["plots/loss.png"]) == {"train loss": [0.5] * 3, "validation loss": [0.5] * 3}
    assert lines(pictures["plots/mae.png"]) == {"train mae": [0.25] * 3, "validation mae": [0.25] * 3}
    stream = io.BytesIO()
    pictures["plots/mae.png"].savefig(stream)
    assert stream.getvalue().startswith(b"\x89PNG")


def test_a_training_without_validation_and_of_one_epoch() -> None:
    pictures = draw_history(history("accuracy", epochs=1, validation=False))
    assert lines(pictures["plots/loss.png"]) == {"train loss": [0.5]}
    assert lines(pictures["plots/accuracy.png"]) == {"train accuracy": [0.25]}


def test_keras_names_are_those_of_both_parts() -> None:
    part = {"loss": 1.0, "accuracy": 0.5, "val": 3.0}
    pictures = draw_history(to_history("history", [{"epoch": 0, "train": part, "validation": part}]))
    assert list(pictures) == ["plots/loss.png", "plots/accuracy.png", "plots/val.png"]
    assert lines(pictures["plots/loss.png"]).keys() == {"loss", "val loss"}
    assert lines(pictures["plots/val.png"]).keys() == {"val", "val val"}


def test_names_that_are_no_file_names() -> None:
    names = ["a/b", "..", "top-5 (%)", "Genauigkeit \u00e4", "a:b", "a_b"]
    pictures = draw_history(history(*names))
    assert len(pictures) == 1 + len(names), "each metric has a picture"
    assert len({name.lower() for name in pictures}) == len(pictures)
    assert all(name.startswith("plots/") and name.count("/") == 1 for name in pictures)
    assert "plots/top-5 ___.png" in pictures and "plots/Genauigkeit \u00e4.png" in pictures
    assert [lines(figure) for figure in pictures.values()][1:] == [
        {f"{part} {name.replace('_', ' ')}": [0.25] * 3 for part in ("train", "validation")} for name in names
    ]


@pytest.mark.parametrize("empty", [History(), KerasHistory()])
def test_no_epochs_make_no_pictures(empty: Epochs) -> None:
    assert draw_history(empty) == {}


def test_without_matplotlib_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *arguments: Any) -> Any:
        return None if name == "matplotlib" else find_spec(name, *arguments)

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", without)
    real = builtins.__import__

    def refusing(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refusing)
    assert draw_history(history("accuracy")) == {}
