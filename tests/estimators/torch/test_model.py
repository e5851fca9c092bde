"""`TorchModel`: predictions on DataFrames and without Spark, types of outputs, folders."""

from __future__ import annotations

import datetime
import json
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pandas
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from tests.estimators.conftest import line_rows, linear, rewritten, saved_by_torch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEATURES = Field(("features",), ("c0",), (3,), "float32", (3,))


class Own(nn.Module):
    """A class that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def model_of(net: nn.Module, outputs: int = 1, kind: str = "float", **given: Any) -> TorchModel:
    params = {"feature_columns": ["features"], "label_columns": ["y"], "run_id": "run", **given}
    return TorchModel(model=net.eval(), inputs=[FEATURES], outputs=[outputs], label_types=[kind], **params)


def expected(net: nn.Module) -> numpy.ndarray[Any, Any]:
    with torch.no_grad():
        return net(torch.from_numpy(line_rows()[0])).numpy()


def test_transform_predicts_every_row_in_its_place(line: DataFrame) -> None:
    model = model_of(linear(), batch_size=16)
    found = model.transform(line).select("features", "y__output").collect()
    got = numpy.array([row.y__output for row in found])
    with torch.no_grad():
        right = linear()(torch.tensor([row.features for row in found])).numpy().reshape(-1)
    assert numpy.allclose(got, right, atol=1e-6)
    assert len(found) == 203


def test_other_names(line: DataFrame) -> None:
    renamed = line.withColumnRenamed("features", "inputs")
    model = model_of(linear()).setFeatureColumns(["inputs"]).setOutputCols(["guess"])
    assert [*renamed.columns, "guess"] == model.transform(renamed).columns
    assert model.getOutputCols() == ["guess"]


@pytest.mark.parametrize(
    ("kind", "outputs", "output_type", "spark_type"),
    [
        ("float", 1, "label", "float"),
        ("int", 1, "label", "int"),
        ("vector", 1, "label", "vector"),
        ("bigint", 4, "label", "vector"),
        ("int", 1, "array", "array<float>"),
        ("float", 4, "array", "array<float>"),
        ("float", 1, "vector", "vector"),
        ("array<double>", 1, "label", "array<double>"),
    ],
)
def test_types_of_outputs(line: DataFrame, kind: str, outputs: int, output_type: str, spark_type: str) -> None:
    frame = model_of(nn.Linear(3, outputs), outputs, kind, output_type=output_type).transform(line.limit(2))
    assert frame.schema["y__output"].dataType.simpleString() == spark_type
    assert all(row.y__output is not None for row in frame.collect())


def test_whole_numbers_are_rounded(line: DataFrame) -> None:
    frame = model_of(linear(), kind="int").transform(line.limit(50)).toPandas()
    right = linear()(torch.tensor(numpy.stack(frame["features"]))).detach().numpy().reshape(-1)
    assert frame["y__output"].tolist() == numpy.rint(right).astype(int).tolist()


def test_rows_with_null_get_null(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, [1.0, 2.0, 3.0]), (2, None), (3, [0.0, 0.0, 0.0])], "n int, features array<float>"
    )
    rows = {row.n: row.y__output for row in model_of(nn.Linear(3, 2), 2).transform(frame).collect()}
    assert rows[2] is None
    assert len(rows[1]) == len(rows[3]) == 2


@pytest.mark.parametrize(
    ("kind", "output_type", "right"),
    [
        ("float", "label", [1.0, None, float("nan"), float("inf")]),
        ("int", "label", [1, None, None, 2**31 - 1]),
        ("bigint", "label", [1, None, None, 2**63 - 1]),
        ("boolean", "label", [True, None, None, True]),
        ("decimal(5,2)", "label", [1, None, None, None]),
        ("date", "label", [datetime.date(1970, 1, 2), None, None, None]),
        ("array<int>", "label", [[1], None, [None], [2**31 - 1]]),
        ("array<decimal(5,2)>", "label", [[1], None, [None], [None]]),
        ("int", "array", [[1.0], None, [float("nan")], [float("inf")]]),
    ],
)
def test_an_output_that_its_type_has_not(spark: SparkSession, kind: str, output_type: str, right: list[Any]) -> None:
    """Neither another number in its place nor a job that ends: null, or the largest whole number."""
    net = nn.Linear(3, 1, bias=False)
    net.weight.data.fill_(0.6)
    frame = spark.createDataFrame(
        [([one, 0.0, 0.0] if one is not None else None,) for one in (1.0, None, float("nan"), float("inf"))],
        "features array<float>",
    ).coalesce(1)
    found = [row.y__output for row in model_of(net, kind=kind, output_type=output_type).transform(frame).collect()]
    if kind == "float" or output_type == "array":
        right[0] = pytest.approx(0.6 if output_type == "label" else [0.6])
    if kind.startswith(("decimal", "array<decimal")):
        right[0] = Decimal("0.60") if kind.startswith("decimal") else [Decimal("0.60")]
    assert repr(found[1:]) == repr(right[1:])
    assert found[0] == right[0]


def test_a_vector_of_another_length_is_named(spark: SparkSession) -> None:
    frame = spark.createDataFrame([([1.0, 2.0],)], "features array<float>")
    with pytest.raises(Exception, match="'features' has 3 values in the first rows, but 2 in row 0"):
        model_of(linear()).transform(frame).collect()


def test_an_output_column_that_is_there_already(line: DataFrame) -> None:
    with pytest.raises(ValueError, match="has a column 'y' already: choose others with setOutputCols"):
        model_of(linear()).setOutputCols(["y"]).transform(line)


def test_predict_without_spark() -> None:
    features = line_rows()[0]
    model = model_of(linear())
    right = expected(linear())
    assert numpy.allclose(model.predict(features), right)
    assert numpy.allclose(model.predict(pandas.DataFrame({"features": list(features)})), right)
    with pytest.raises(DataError, match=r"an array of shape \[2, 5\] was given for features"):
        model.predict(numpy.zeros((2, 5)))
    with pytest.raises(DataError, match="there is no column 'features' among"):
        model.predict(pandas.DataFrame({"x": [1.0]}))
    twice = pandas.DataFrame({"features": list(features)})
    for wrong, words in (
        (pandas.DataFrame({"Features": [1.0]}), r"among \['Features'\]\. Did you mean 'Features'\?"),
        (pandas.concat([twice, twice], axis=1), "there are 2 columns named 'features': rename"),
        ({"features": [["1", "2", "3"]]}, "'features' is of type string, and a model reads numbers"),
        ({"features": [[1.0, "2", 3.0]]}, "column 'features' is not one of numbers: .*'2'"),
        (numpy.array([["1", "2", "3"]]), "given for features holds '1': a model reads numbers"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(wrong)


def test_saved_and_loaded_without_running_code(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))
    saved = model_of(net, history=[{"epoch": 0}], output_cols=["guess"])
    saved.save(path)
    loaded = TorchModel.load(path)
    assert loaded.uid == saved.uid
    assert (loaded.getHistory(), loaded.getOutputCols(), loaded.getRunId()) == ([{"epoch": 0}], ["guess"], "run")
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(net.eval()))
    with pytest.raises(FileExistsError, match=r"overwrite\(\)"):
        saved.save(path)
    saved.write().overwrite().save(path)
    told = json.loads((tmp_path / "model" / "spark_estimator.json").read_text())
    assert told["inputs"][0]["names"] == ["features"]
    assert [one.name for one in tmp_path.iterdir()] == ["model"], "nothing half-written is left"


def test_own_classes_need_a_module_or_trust(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    model_of(Own()).save(path)
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own.*model=YourModule.*trust=True"):
        TorchModel.load(path)
    blank = Own()
    nn.init.zeros_(blank.inner.weight)
    assert numpy.allclose(TorchModel.load(path, model=blank).predict(line_rows()[0]), expected(linear()))
    assert not blank.inner.weight.any(), "the module that was given stays as it was"
    assert numpy.allclose(TorchModel.load(path, trust=True).predict(line_rows()[0]), expected(linear()))


def test_a_class_of_a_notebook_s_cell_or_of_a_function_is_saved_whole(tmp_path: Path) -> None:
    """Whoever loads it has no such class."""
    path = str(tmp_path / "model")
    program = f"""
import torch
from torch import nn
from tests.estimators.torch.test_model import model_of

FACTOR = 2.0

class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.inner.weight)

    def forward(self, x):
        return self.inner(x) * FACTOR

def inside():
    class Own(Doubled):
        pass
    return Own()

model_of(Doubled()).save({path!r})
model_of(inside()).save({path + "2"!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for folder in (path, path + "2"):
        with pytest.raises(DataError, match=r"classes other than torch\.nn's own"):
            TorchModel.load(folder)
        found = TorchModel.load(folder, trust=True).predict(line_rows()[0])
        assert numpy.allclose(found.ravel(), 2 * line_rows()[0].sum(axis=1), atol=1e-5)


def test_a_poisoned_file_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model_of(linear()).save(str(path))
    touched = tmp_path / "touched"

    class Poison:
        def __reduce__(self) -> Any:
            return (Path.touch, (touched,))

    rewritten(path, "module.pt", saved_by_torch(Poison()))
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own.*GLOBAL"):
        TorchModel.load(str(path))
    rewritten(path, "weights.pt", saved_by_torch({"weight": Poison()}))
    with pytest.raises(DataError, match=r"weights\.pt holds more than numbers, and is not read: .*GLOBAL") as refusal:
        TorchModel.load(str(path), model=linear())
    assert "weights_only" not in str(refusal.value), "PyTorch's advice is not repeated"
    assert not touched.exists()


def test_a_damaged_folder_is_not_loaded(tmp_path: Path) -> None:
    """One byte of each file, at any place, its end, or all of it."""
    path = tmp_path / "model"
    net = linear()
    model_of(net, decoders={"features": len}).save(str(path))
    for name in ("weights.pt", "module.pt", "decoders.pkl"):
        file = path / name
        whole = file.read_bytes()
        numbers = whole.find(net.weight.detach().numpy().tobytes())  # only the first file has them
        for place in (0, numbers if numbers > 0 else len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
            with pytest.raises(DataError, match=f"{name} is damaged: its {len(whole)} bytes are not those that were"):
                TorchModel.load(str(path), trust=True)
        for torn in (whole[:-1], b""):
            file.write_bytes(torn)
            with pytest.raises(DataError, match=f"{name} is damaged: its {len(torn)} bytes are not those"):
                TorchModel.load(str(path), trust=True)
        file.unlink()
        with pytest.raises(DataError, match=f"holds no whole TorchModel: there is no {name}"):
            TorchModel.load(str(path), trust=True)
        file.write_bytes(whole)
    assert TorchModel.load(str(path), trust=True).getDecoders() == {"features": len}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("weights.pt", b"", "no file of PyTorch: 0 bytes, which are no whole zip archive"),
        ("weights.pt", saved_by_torch({"weight": torch.zeros(3, 3)}), "weights.pt do not fit the architecture"),
        ("weights.pt", saved_by_torch([1]), "weights.pt do not fit the architecture"),
        ("module.pt", saved_by_torch({"a": 1}), "module.pt holds dict, and no module of PyTorch"),
        ("module.pt", saved_by_torch(nn.Linear(3, 1))[:300], "module.pt is no file of PyTorch: 300 bytes"),
        ("decoders.pkl", b"", "decoders.pkl cannot be read: EOFError"),
        ("decoders.pkl", pickle.dumps([1]), "decoders.pkl holds list, and no dict"),
    ],
)
def test_files_that_hold_other_things(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / "model"
    model_of(linear(), decoders={"features": len}).save(str(path))
    rewritten(path, name, content)
    with pytest.raises(DataError, match=words):
        TorchModel.load(str(path), trust=True)


def test_a_broken_spark_estimator_json_names_the_key(tmp_path: Path) -> None:
    path = tmp_path / "model"
    model_of(linear()).save(str(path))
    file = path / "spark_estimator.json"
    told = json.loads(file.read_text())
    field = told["inputs"][0]
    for key in ("uid", "params", "inputs", "outputs", "label_types", "meanings", "decoders", "sha256"):
        file.write_text(json.dumps({name: value for name, value in told.items() if name != key}))
        with pytest.raises(DataError, match=rf"spark_estimator\.json is broken: '{key}' is not there, and should be "):
            TorchModel.load(str(path))
    for key, value, words in (
        ("uid", 3, "should be a text, and is 3"),
        ("params", 3, "should be an object, and is 3"),
        ("params", {"nope": 1}, r"does not fit: TorchModel has no parameter 'nope'.*[^.]\.$"),
        ("params", {"batch_size": "<b>"}, "does not fit: .*batch_size"),
        ("params", {"history": "<b>"}, "does not fit: .*history"),
        ("inputs", [], "should be a list of objects, with one"),
        ("inputs", 5, "should be a list of objects"),
        ("inputs", [{"bogus": 1}], "does not tell of a field in .*bogus"),
        ("inputs", [{**field, "widths": [5]}], "does not tell of a field in .*5 values a row"),
        ("inputs", [{**field, "names": [3]}], "does not tell of a field in .*names and columns are texts"),
        ("inputs", [{**field, "columns": []}], "does not tell of a field in .*are not as many"),
        ("inputs", [{**field, "dtype": "float99"}], "does not tell of a field in .*float99"),
        ("inputs", [{**field, "shape": 3}], "does not tell of a field in "),
        ("outputs", None, "should be a list of numbers of values"),
        ("outputs", [0], "should be a list of numbers of values"),
        ("label_types", ["float"] * 9, "should be a list of Spark types, 1, as many as outputs"),
        ("meanings", [], "should be a list of .*logit.* or null, 1, as many as outputs"),
        ("meanings", ["logkt"], "should be a list of .*logit.* or null, 1, as many as outputs, and is .*logkt"),
        ("decoders", "x", "should be a list of columns, and is 'x'"),
        ("sha256", {"weights.pt": 3}, "should be an object from files to texts"),
        ("sha256", {}, r"tells of no weights\.pt|holds no architecture"),
    ):
        file.write_text(json.dumps({**told, key: value}))
        with pytest.raises(DataError, match=words):
            TorchModel.load(str(path))
    for text, words in (("{", "could be read: spark_estimator.json: Expecting"), ("[" * 9999, "could be read")):
        file.write_text(text)
        with pytest.raises(DataError, match=words):
            TorchModel.load(str(path))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no TorchModel: there is no spark_estimator\.json"):
        TorchModel.load(str(tmp_path))
    with pytest.raises(DataError, match="folders that the driver sees"):
        TorchModel.load("s3://bucket/model")


def test_in_a_pipeline_that_is_saved(line: DataFrame, spark: SparkSession, tmp_path: Path, estimator: Any) -> None:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.ml.feature import VectorAssembler

    assembler = VectorAssembler(inputCols=["x0", "x1", "x2"], outputCol="assembled")
    fitted = Pipeline(stages=[assembler, estimator(feature_cols=["assembled"], epochs=1)]).fit(line)
    path = str(tmp_path / "pipeline")
    fitted.write().overwrite().save(path)
    before = [row.y__output for row in fitted.transform(line).orderBy("x0").collect()]
    after = [row.y__output for row in PipelineModel.load(path).transform(line).orderBy("x0").collect()]
    assert before == after


@pytest.mark.parametrize(("kind", "right"), [("boolean", [False, True]), ("int", [0, 1])])
def test_logits_are_compared_with_nought(spark: SparkSession, kind: str, right: list[Any]) -> None:
    frame = spark.createDataFrame([([-8.0, 0.0, 0.0],), ([0.2, 0.0, 0.0],)], "features array<float>")
    net = nn.Linear(3, 1, bias=False)
    nn.init.ones_(net.weight)
    model = TorchModel(
        model=net,
        inputs=[FEATURES],
        outputs=[1],
        label_types=[kind],
        meanings=["logit"],
        feature_columns=["features"],
        label_columns=["y"],
    )
    assert [row.y__output for row in model.transform(frame).collect()] == right


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        ("boolean", 0.4, False),
        ("tinyint", 200.0, 127),
        ("date", 1.2, datetime.date(1970, 1, 2)),
        ("double", 16777217.0, 16777217.0),
    ],
)
def test_values_in_the_label_s_type(spark: SparkSession, kind: str, value: float, right: object) -> None:
    frame = spark.createDataFrame([([value],)], "features array<double>")
    field = Field(("features",), ("c0",), (1,), "float64", (1,))
    model = TorchModel(
        model=nn.Identity(),
        inputs=[field],
        outputs=[1],
        label_types=[kind],
        feature_columns=["features"],
        label_columns=["y"],
    )
    assert model.transform(frame).first().y__output == right  # type: ignore[union-attr]


def test_predict_reads_pandas_as_spark_does() -> None:
    field = Field(("t",), ("c0",), (1,), "float64", (1,))
    params = {"feature_columns": ["t"], "label_columns": ["y"]}
    model = TorchModel(model=nn.Identity(), inputs=[field], outputs=[1], label_types=["double"], **params)
    frame = pandas.DataFrame({"t": pandas.to_datetime([1_700_000_001], unit="s")})
    assert model.predict(frame).tolist() == [[1_700_000_001.0]]
    assert model.predict({"t": numpy.array([2.0, 3.0])}).tolist() == [[2.0], [3.0]]


def test_buffers_that_are_not_in_the_state_are_saved(tmp_path: Path) -> None:
    net = nn.Sequential(linear())
    net[0].register_buffer("extra", torch.full((1,), 2.0), persistent=False)
    model_of(net).save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.getModel()[0].extra.tolist() == [2.0]  # type: ignore[index]
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(linear()))
