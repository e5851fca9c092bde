"""How a training shows itself: frames, pictures, tables in notebooks."""

from __future__ import annotations

import builtins
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import PreflightError, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators.history import History
from spark_estimator.estimators.keras.history import KerasHistory
from spark_estimator.estimators.keras.history import to_history as to_keras_history

ENTRIES: list[dict[str, Any]] = [
    {
        "epoch": n,
        "train": {"loss": 1.0 / (n + 1), "all_metrics": [[0.5]]},
        "validation": {"loss": 2.0, "all_metrics": [[]]},
    }
    for n in range(3)
]


class Shown(nn.Linear):
    def extra_repr(self) -> str:
        return "<script>alert(1)</script>"


def model() -> TorchModel:
    field = Field(("x",), ("c0",), (1,), "float32", (1,))
    return TorchModel(
        model=Shown(1, 1),
        inputs=[field],
        outputs=[1],
        label_types=["float"],
        feature_columns=["x"],
        label_columns=["<b>y</b>"],
        history=ENTRIES,
    )


def test_a_history_is_a_list_and_a_frame() -> None:
    history = model().getHistory()
    assert history == ENTRIES
    frame = history.to_pandas()
    assert list(frame.columns) == ["epoch", "train_loss", "train_metric_0", "validation_loss"]
    assert frame["train_loss"].tolist() == [1.0, 0.5, 1 / 3]
    two = History([{"epoch": 0, "train": {"loss": 1.0, "all_metrics": [[0.1], [0.2, 0.3]]}}])
    assert list(two.to_rows()[0]) == ["epoch", "train_loss", "train_metric_0_0", "train_metric_1_0", "train_metric_1_1"]
    grouped = {"loss": 1.0, "all_metrics": [{"group_0_y": 0.1}, {"group_1_y": 0.2}]}
    (row,) = History([{"epoch": 0, "train": grouped}]).to_rows()
    assert [value for name, value in row.items() if "metric" in name] == [0.1, 0.2]
    named = {**grouped, "metrics": {"accuracy": 0.1, "mae": 0.2}}
    (row,) = History([{"epoch": 0, "train": named, "validation": named}]).to_rows()
    assert list(row) == [
        "epoch",
        *(f"{part}_{n}" for part in ("train", "validation") for n in ("loss", "accuracy", "mae")),
    ]
    assert History().to_pandas().empty
    with pytest.raises(TypeError, match="history must be a list with an entry for each epoch"):
        model().setHistory("nothing")  # type: ignore[attr-defined]


def test_where_the_time_of_an_epoch_went_has_a_column_for_each_part() -> None:
    time = {"input": 0.1, "compute": 2.0, "peers": 0.2, "network": 0.3}
    columns = {f"time_{name}": seconds for name, seconds in time.items()}
    history = TorchModel(history=[{"epoch": 0, "train": {"loss": 0.5}, "time": time}]).getHistory()
    assert history.to_rows() == [{"epoch": 0, "train_loss": 0.5, **columns}]
    of_keras = to_keras_history("history", [{"epoch": 0, "train": {"loss": 0.5}, "time": time}])
    assert of_keras.to_rows() == [{"epoch": 0, "loss": 0.5, **columns}]


def test_horovods_own_histories_are_taken() -> None:
    logged: dict[str, Any] = {"train_loss": torch.tensor(1.5), "steps": numpy.float32(3)}
    entry = {"epoch": 0, "logged": {"train_loss": 1.5, "steps": 3.0}}
    for made in (TorchModel(history=logged), TorchModel().setHistory(logged), TorchModel()._set(history=logged)):
        assert made.getHistory() == [entry] and made.getHistory().to_rows() == [
            {"epoch": 0, "train_loss": 1.5, "steps": 3}
        ]
        assert {type(value) for value in made.getHistory()[0]["logged"].values()} == {float}, "JSON can hold them"
    by_name = TorchModel(history={"train_loss": [1.0, 0.5], "auc": numpy.ones(1)}).getHistory()
    assert by_name.to_rows() == [{"epoch": 0, "train_loss": 1.0, "auc": 1.0}, {"epoch": 1, "train_loss": 0.5}]
    losses = TorchModel(history=[1.0, 0.5]).getHistory()
    assert losses.to_rows() == [{"epoch": 0, "train_loss": 1.0}, {"epoch": 1, "train_loss": 0.5}]
    assert TorchModel(history={}).getHistory() == [] == TorchModel(history=[]).getHistory()
    for wrong in ({"loss": "low"}, {"loss": [[1.0]]}, [1.0, "low"], {"loss": torch.ones(1, 1)}):
        with pytest.raises(TypeError, match=r"history.* must be a number, or a list with a number for each epoch; got"):
            TorchModel(history=wrong)


def test_tables_show_text_as_text() -> None:
    shown = model()._repr_html_()
    assert "&lt;script&gt;alert(1)" in shown and "<script>" not in shown
    assert "&lt;b&gt;y&lt;/b&gt;" in shown
    assert "0.33333" in shown
    estimator = TorchEstimator(feature_cols=["<i>"], loss=nn.MSELoss())
    assert "&lt;i&gt;" in estimator._repr_html_() and "<i>" not in estimator._repr_html_()
    assert "MSELoss()" in estimator._repr_html_() and "epochs" not in estimator._repr_html_()


def test_a_picture_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    class Axes:
        def plot(self, *points: Any, **style: Any) -> None:
            drawn.append((*points, style["label"]))

        def set_xlabel(self, text: str) -> None:
            assert text == "epoch"

        def legend(self) -> None:
            pass

    History(ENTRIES).plot(Axes())
    assert drawn == [((0, 1, 2), (1.0, 0.5, 1 / 3), "train loss"), ((0, 1, 2), (2.0, 2.0, 2.0), "validation loss")]
    drawn.clear()
    History([{"epoch": 0, "train": {"loss": 1.0, "metrics": {"mae": 0.5}}}]).plot(Axes(), ["mae", "train_loss"])
    assert drawn == [((0,), (0.5,), "train mae"), ((0,), (1.0,), "train loss")]
    with pytest.raises(ValueError, match="has no 'auc'; it has train_loss, train_metric_0, validation_loss"):
        History(ENTRIES).plot(Axes(), ["auc"])
    with pytest.raises(TypeError, match="names must be strings; got None"):
        History(ENTRIES).plot(Axes(), [None])  # type: ignore[list-item]
    KerasHistory(loss=[1.0], val_loss=[2.0], auc=[0.5], val_auc=[0.4]).plot(Axes(), "auc")
    assert drawn[2:] == [((0,), (0.5,), "auc"), ((0,), (0.4,), "val auc")]
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PreflightError, match="pip install matplotlib"):
        History(ENTRIES).plot()
