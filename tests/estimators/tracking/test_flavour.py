"""Models as MLflow's pyfunc flavour, without MLflow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from torch import nn

from spark_estimator import TorchModel, __version__
from spark_estimator.data.fields import Field
from spark_estimator.errors import DataError
from spark_estimator.estimators.tracking.flavour import (
    PyfuncModel,
    _load_pyfunc,
    _protect_null_texts,
    find_nullable,
    list_requirements,
)


class Renamed(TorchModel):
    """A user's own class, as one of a notebook."""

    __module__ = "__main__"


def model(kind: type[TorchModel] = TorchModel) -> TorchModel:
    """y = 2 a - b + 1."""
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[2.0, -1.0]]))
        net.bias.fill_(1)
    field = Field(("a", "b"), ("c0", "c1"), (1, 1), "float32", (2,))
    return kind(
        model=net,
        inputs=[field],
        outputs=[1],
        label_types=["float"],
        feature_columns=["a", "b"],
        label_columns=["y"],
    )


FRAME = pandas.DataFrame({"a": [0.0, 1.0, 3.0], "b": [0.0, 5.0, numpy.nan], "other": ["x"] * 3}, index=[7, 8, 9])


def test_it_predicts_what_transform_adds() -> None:
    made = model()
    predicted = PyfuncModel(made).predict(FRAME, params={"ignored": 1})
    assert list(predicted.columns) == ["y__output"] and list(predicted.index) == [7, 8, 9]
    assert predicted["y__output"].tolist()[:2] == [1.0, -2.0] and pandas.isna(predicted["y__output"].iloc[2])
    assert PyfuncModel(made).get_raw_model() is made


def test_no_rows_and_missing_columns() -> None:
    flavour = PyfuncModel(model())
    assert flavour.predict(FRAME[:0]).shape == (0, 1)
    with pytest.raises(DataError, match="there is no column 'b' among"):
        flavour.predict(FRAME[["a"]])
    with pytest.raises(TypeError, match=r"predict\(\) takes a pandas.DataFrame .*; got list\."):
        flavour.predict(["a text"])


def test_mlflow_loads_it_by_its_folder(tmp_path: Path) -> None:
    saved = str(tmp_path / "model")
    model().save(saved)
    loaded = _load_pyfunc(saved)
    assert type(loaded.get_raw_model()) is TorchModel
    pandas.testing.assert_frame_equal(loaded.predict(FRAME), PyfuncModel(model()).predict(FRAME))
    with pytest.raises(FileNotFoundError):
        _load_pyfunc(str(tmp_path))


def test_null_texts_stay_null_where_mlflow_makes_texts() -> None:
    """spark_udf maps str over a frame, which makes a text of None."""
    frame = _protect_null_texts(pandas.DataFrame({"kind": ["good", None], "p": [1.0, 2.0]}))
    texts = frame.map(str) if hasattr(frame, "map") else frame.applymap(str)
    assert texts["kind"].tolist() == ["good", None] and texts["p"].tolist() == ["1.0", "2.0"]
    assert type(texts) is pandas.DataFrame and type(frame[["kind"]]) is pandas.DataFrame
    whole = pandas.DataFrame({"kind": ["good"]})
    assert _protect_null_texts(whole) is whole


def test_features_that_take_null() -> None:
    made = model().copy()
    assert find_nullable(made) == set()
    made.setParams(null_values={"a": 1.0}, categories={"b": {"hash": 5}})
    assert find_nullable(made) == {"a", "b"}


@pytest.mark.parametrize("kind", [TorchModel, Renamed])
def test_packages_are_pinned_to_what_is_installed(kind: type[TorchModel]) -> None:
    requirements = list_requirements(model(kind))
    assert requirements[0] == f"spark-estimator=={__version__}"
    pinned = dict(requirement.split("==") for requirement in requirements)
    assert {"pyspark", "pyarrow", "pandas", "numpy", "cloudpickle", "torch"} <= pinned.keys()
    assert pinned["torch"] == torch.__version__.partition("+")[0], "without the build's local version"
    assert all(re.fullmatch(r"[0-9][^+]*", version) for version in pinned.values())
    assert len(pinned) == len(requirements)
