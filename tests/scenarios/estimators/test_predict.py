"""What `predict` is given, and what it makes of it: models of all frameworks, and MLflow's.

Each input is either predicted rightly, or refused with a sentence on what `predict` takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators.tracking.flavour import PyfuncModel
from tests.estimators.conftest import linear
from tests.estimators.torch_models import model_of

BOTH = Field(("a", "b"), ("c0", "c1"), (1, 1), "float32", (2,))
COMMON: dict[str, Any] = {
    "inputs": [BOTH],
    "outputs": [1],
    "label_types": ["float"],
    "feature_columns": ["a", "b"],
    "label_columns": ["y"],
}


def torch_net() -> nn.Linear:
    """y = 2 a - b + 1."""
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[2.0, -1.0]]))
        net.bias.fill_(1)
    return net.eval()


def keras_model() -> Any:
    keras = pytest.importorskip("keras")
    from spark_estimator import KerasModel

    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.set_weights([numpy.array([[2.0], [-1.0]]), numpy.array([1.0])])
    return KerasModel(model=net, **COMMON)


def lightning_model() -> Any:
    pytest.importorskip("lightning.pytorch", reason="the extra 'lightning' is not installed")
    from spark_estimator.lightning import TorchModel as LightningModel

    return LightningModel(model=torch_net(), **COMMON)


OF_NUMBERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: TorchModel(model=torch_net(), **COMMON),
    "lightning": lightning_model,
    "keras": keras_model,
}
TABLES: dict[str, Any] = {
    "a frame": pandas.DataFrame({"a": [0.0, 1.0], "b": [0.0, 5.0]}, index=[7, 8]),
    "a frame of objects": pandas.DataFrame({"a": [0.0, 1.0], "b": [0.0, 5.0]}, dtype=object),
    "lists": {"a": [0, 1], "b": [0, 5]},
    "tuples and arrays": OrderedDict(a=(0.0, 1.0), b=numpy.array([0, 5])),
    "series": {"a": pandas.Series([0.0, 1.0]), "b": pandas.Series([0, 5], dtype="Int64")},
    "a table of Arrow": pyarrow.table({"a": [0.0, 1.0], "b": [0, 5]}),
    "a batch of Arrow": pyarrow.RecordBatch.from_pydict({"a": [0.0, 1.0], "b": [0, 5]}),
    "columns of Arrow": {"a": pyarrow.array([0.0, 1.0]), "b": pyarrow.chunked_array([[0], [5]])},
}
ARRAYS: dict[str, Any] = {
    "an array": numpy.array([[0, 0], [1, 5]]),
    "lists of rows": [[0.0, 0.0], [1.0, 5.0]],
    "tuples of rows": ((0, 0), (1, 5)),
    "a list of arrays": [numpy.zeros(2), numpy.array([1.0, 5.0])],
    "a tensor": torch.tensor([[0.0, 0.0], [1.0, 5.0]]),
    "a series of lists": pandas.Series([[0.0, 0.0], [1.0, 5.0]]),
    "objects": numpy.array([[0.0, 0.0], [1.0, 5.0]], dtype=object),
    "lists of Arrow": pyarrow.array([[0.0, 0.0], [1.0, 5.0]]),
}
EMPTY: dict[str, Any] = {
    "a frame without rows": pandas.DataFrame({"a": [], "b": []}),
    "a frame of objects without rows": pandas.DataFrame({"a": [], "b": []}, dtype=object),
    "empty lists": {"a": [], "b": []},
    "an empty table of Arrow": pyarrow.table({"a": pyarrow.array([], "double"), "b": pyarrow.nulls(0)}),
}
EMPTY_ARRAYS: dict[str, Any] = {
    "an empty list": [],
    "an empty array": numpy.empty((0, 2)),
    "an empty series": pandas.Series([]),
}
TAKES = "predict\\(\\) takes a pandas.DataFrame"
NEITHER: dict[str, tuple[Any, type[Exception], str]] = {
    "a number": (3.0, TypeError, TAKES),
    "a boolean": (True, TypeError, TAKES),
    "a number of numpy": (numpy.float32(3), TypeError, TAKES),
    "None": (None, TypeError, TAKES),
    "a text": ("1.0", TypeError, TAKES),
    "bytes": (b"12", TypeError, TAKES),
    "bytes that change": (bytearray(b"12"), TypeError, TAKES),
    "an array without dimensions": (numpy.array(3.0), TypeError, TAKES),
    "a text of numpy": (numpy.array("12"), TypeError, TAKES),
    "a generator": ((row for row in [[0.0, 0.0]]), TypeError, TAKES),
    "a set": ({1.0, 2.0}, TypeError, TAKES),
    "a function": (print, TypeError, TAKES),
    "a list of rows as dicts": ([{"a": 1.0, "b": 2.0}], TypeError, r"takes pandas\.DataFrame\(rows\)"),
    "a series of dicts": (pandas.Series([{"a": 1.0, "b": 2.0}]), DataError, "holds dicts, and models need numbers"),
    "an array of texts": (numpy.array([["1", "2"]]), DataError, "holds '1': a model reads numbers"),
    "a list of texts": (["1", "2"], DataError, "holds '1': a model reads numbers"),
    "a series of texts": (pandas.Series(["1", "2"]), DataError, "'a, b' is of type string, and models need numbers"),
    "rows of other lengths": ([[1.0], [1.0, 2.0]], DataError, "'a, b' has 2 values in the first rows, but 1 in row 0"),
    "rows of other widths": (numpy.zeros((2, 3)), DataError, r"\[2, 3\] was given for a, b: it has to be \[rows, 2\]"),
    "one row": (numpy.zeros(3), DataError, r"\[3\] was given for a, b: it has to be \[rows, 2\]"),
    "None in a list": ([None], DataError, "holds null in row 0"),
    "durations": (numpy.zeros((1, 2), "timedelta64[s]"), DataError, "a model reads real numbers"),
    "records": (numpy.zeros(2, [("a", "f4"), ("b", "f4")]), DataError, "a model reads real numbers"),
}
NO_TABLES: dict[str, tuple[Any, type[Exception], str]] = {
    "a dict of one row": ({"a": 1.0, "b": 2.0}, TypeError, f"column 'a' is 1.0, .*{TAKES}"),
    "a dict of one row of numpy": ({"a": numpy.float64(1), "b": numpy.array(2)}, TypeError, "column 'a' is"),
    "a dict with a text": ({"a": [1.0, 2.0], "b": "12"}, TypeError, f"column 'b' is '12', .*{TAKES}"),
    "a dict with None": ({"a": [1.0], "b": None}, TypeError, "column 'b' is None"),
    "a dict with a dict": ({"a": [1.0], "b": {0: 1.0}}, TypeError, "column 'b' is {0: 1.0}"),
    "a dict with a generator": ({"a": [1.0], "b": (n for n in [1.0])}, TypeError, "column 'b' is <generator"),
    "an empty dict": ({}, DataError, r"there is no column 'a' among \[\]"),
    "an empty frame": (pandas.DataFrame(), DataError, r"there is no column 'a' among \[\]"),
    "a frame with an index alone": (pandas.DataFrame(index=[0]), DataError, "there is no column 'a'"),
    "columns of other lengths": ({"a": [1.0], "b": [1.0, 2.0]}, DataError, "numbers of rows: {'a': 1, 'b': 2}"),
    "columns of texts": (pandas.DataFrame({"a": ["1"], "b": [2.0]}), DataError, "'a' is of type string"),
    "columns of bytes": ({"a": [b"1"], "b": [2.0]}, DataError, "'a' is of type binary"),
    "columns of durations": (
        pandas.DataFrame({"a": pandas.to_timedelta([1]), "b": [1.0]}),
        DataError,
        "'a' is of type",
    ),
    "two columns of one name": (pyarrow.table([[1.0], [1.0]], names=["a", "a"]), DataError, "2 columns named 'a'"),
}


@pytest.fixture(scope="module", params=OF_NUMBERS)
def of_numbers(request: pytest.FixtureRequest) -> Any:
    return OF_NUMBERS[request.param]()


@pytest.mark.parametrize("case", {**TABLES, **ARRAYS})
def test_rows(of_numbers: Any, case: str) -> None:
    result = of_numbers.predict({**TABLES, **ARRAYS}[case])
    assert numpy.allclose(result, [[1.0], [-2.0]]) and result.shape == (2, 1)


@pytest.mark.parametrize("case", {**EMPTY, **EMPTY_ARRAYS})
def test_no_rows(of_numbers: Any, case: str) -> None:
    assert of_numbers.predict({**EMPTY, **EMPTY_ARRAYS}[case]).shape == (0, 1)


@pytest.mark.parametrize("case", {**NEITHER, **NO_TABLES})
def test_what_is_no_table_and_no_array(of_numbers: Any, case: str) -> None:
    features, error, words = {**NEITHER, **NO_TABLES}[case]
    with pytest.raises(error, match=words):
        of_numbers.predict(features)


@pytest.mark.parametrize("case", {**TABLES, **EMPTY, **ARRAYS, **EMPTY_ARRAYS, **NEITHER, **NO_TABLES})
def test_mlflow(of_numbers: Any, case: str) -> None:
    flavour = PyfuncModel(of_numbers)
    if case in TABLES:
        result = flavour.predict(TABLES[case])
        assert numpy.allclose(result["y__output"], [1.0, -2.0])
        assert list(result.index) == ([7, 8] if case == "a frame" else [0, 1])
    elif case in EMPTY:
        assert flavour.predict(EMPTY[case]).shape == (0, 1)
    elif case in NO_TABLES:
        features, error, words = NO_TABLES[case]
        with pytest.raises(error, match=words):
            flavour.predict(features)
    else:
        features = {**ARRAYS, **EMPTY_ARRAYS}[case] if case not in NEITHER else NEITHER[case][0]
        with pytest.raises(TypeError, match=f"{TAKES} with the columns of the model's features; got "):
            flavour.predict(features)


class RowByRow(TorchModel):
    """With a function of the user's for each row."""

    def get_prediction_fn(self) -> Callable[[Any, Any], Any]:
        return lambda net, row: net(torch.tensor([row["a"], row["b"]], dtype=torch.float32))


@pytest.mark.parametrize("case", TABLES)
def test_mlflow_row_by_row(case: str) -> None:
    flavour = PyfuncModel(RowByRow(model=torch_net(), **COMMON))
    assert numpy.allclose(flavour.predict(TABLES[case])["y__output"], [1.0, -2.0])
    with pytest.raises(TypeError, match=f"column 'b' is 2.0, .*{TAKES}"):
        flavour.predict({"a": [1.0], "b": 2.0})


class Sum(nn.Module):
    """Of two inputs: an embedding's number, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 1)
        with torch.no_grad():
            self.table.weight.copy_(torch.tensor([[10.0], [20.0], [30.0]]))

    def forward(self, city: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(city) + x
        return output


def of_categories(names: list[str]) -> TorchModel:
    fields = [Field(("city",), ("c0",), (1,), "int64", ()), Field(("x",), ("c1",), (1,), "float32", (1,))]
    return TorchModel(
        model=Sum().table.eval() if names == ["city"] else Sum().eval(),
        inputs=fields[: len(names)],
        outputs=[1],
        label_types=["float"],
        feature_columns=names,
        label_columns=["y"],
        categories={"city": ["Rome", "Oslo"]},
    )


def test_texts_of_categories() -> None:
    alone, both = of_categories(["city"]), of_categories(["city", "x"])
    assert alone.predict(["Oslo", None, "Rome"]).tolist() == [[30.0], [10.0], [20.0]]
    assert alone.predict(pandas.Series(["Oslo"], dtype="category")).tolist() == [[30.0]]
    assert alone.predict(pyarrow.array(["Oslo", None])).tolist() == [[30.0], [10.0]]
    assert alone.predict([]).shape == (0, 1)
    assert both.predict([["Oslo", "Rome"], [1.0, 2.0]]).tolist() == [[31.0], [22.0]]
    for text in ("Oslo", b"Oslo", numpy.str_("Oslo"), numpy.array("Oslo")):
        with pytest.raises(TypeError, match=f"given {text!r:.4}.*{TAKES}"):
            alone.predict(text)
        with pytest.raises(TypeError, match=f"column 'city' is .*{TAKES}"):
            alone.predict({"city": text})
        with pytest.raises(TypeError, match=TAKES):
            both.predict([text, [1.0]])
    for features, words in (
        ([["Oslo"], [1.0, 2.0]], "the arrays have different numbers of rows: {'city': 1, 'x': 2}"),
        (["Oslo"], f"1 array was given for 2 inputs. {TAKES}"),
        ([], f"0 arrays were given for 2 inputs. {TAKES}"),
        (numpy.zeros((2, 2)), f"1 array was given for 2 inputs. {TAKES}"),
    ):
        with pytest.raises(DataError, match=words):
            both.predict(features)
    with pytest.raises(TypeError, match=TAKES):
        both.predict([["Oslo"], None])


def test_a_row_with_a_null_in_place_of_its_list() -> None:
    for parameters in ({}, {"null_values": {"features": 0.0}}):
        model = model_of(linear(), **parameters)
        for features in ({"features": [None]}, [None], {"features": [[1.0, 2.0, 3.0], None]}):
            with pytest.raises(DataError, match=r"column 'features' holds null in row [01] .*functions\.coalesce"):
                model.predict(features)
        with pytest.raises(DataError, match="column 'features' holds single values in a batch of rows"):
            model.predict({"features": [1.0]})
