"""A saved model's folder: wrong values in its manifest, and files that hold other objects."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.estimators.metadata import ModelMetadata
from tests.estimators.conftest import linear, rewritten, saved_by_torch
from tests.estimators.torch_models import model_of


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("weights.pt", b"", "no file of PyTorch: 0 bytes, which are no whole zip archive"),
        ("weights.pt", saved_by_torch({"weight": torch.zeros(3, 3)}), "weights.pt do not fit the architecture"),
        ("weights.pt", saved_by_torch([1]), "weights.pt do not fit the architecture"),
        ("module.pt", saved_by_torch({"a": 1}), "module.pt contains dict instead of a torch.nn.Module"),
        ("module.pt", saved_by_torch(nn.Linear(3, 1))[:300], "module.pt is no file of PyTorch: 300 bytes"),
        ("decoders.pkl", b"", "decoders.pkl cannot be read: EOFError"),
        ("decoders.pkl", pickle.dumps([1]), "decoders.pkl contains list instead of a dict"),
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
    manifest = json.loads(file.read_text())
    field = manifest["inputs"][0]
    for key in ("uid", "params", "inputs", "outputs", "label_types", "meanings", "decoders", "sha256"):
        file.write_text(json.dumps({name: value for name, value in manifest.items() if name != key}))
        with pytest.raises(DataError, match=rf"spark_estimator\.json is broken: '{key}' is missing; it must be "):
            TorchModel.load(str(path))
    for key, value, words in (
        ("uid", 3, "must be a text; it is 3"),
        ("params", 3, "must be an object; it is 3"),
        ("params", {"nope": 1}, r"does not fit: TorchModel has no parameter 'nope'.*[^.]\.\n"),
        ("params", {"batch_size": "<b>"}, "does not fit: .*batch_size"),
        ("params", {"categories": {"x": 3}}, "does not fit: .*categories"),
        ("params", {"history": "<b>"}, "does not fit: .*history"),
        ("inputs", [], "must be a list of objects, with one"),
        ("inputs", 5, "must be a list of objects"),
        ("inputs", [{"bogus": 1}], "has an invalid field .*bogus"),
        ("inputs", [{**field, "widths": [5]}], "has an invalid field .*5 values a row"),
        ("inputs", [{**field, "names": [3]}], "has an invalid field .*names and columns are texts"),
        ("inputs", [{**field, "columns": []}], "has an invalid field .*are not as many"),
        ("inputs", [{**field, "times": ["date", "date"]}], "has an invalid field .*are not as many"),
        ("inputs", [{**field, "dtype": "float99"}], "has an invalid field .*float99"),
        ("inputs", [{**field, "shape": 3}], "has an invalid field "),
        ("outputs", None, "must be a list of numbers of values"),
        ("outputs", [0], "must be a list of numbers of values"),
        ("label_types", ["float"] * 9, "must be a list of Spark types, 1, as many as outputs"),
        ("meanings", [], "must be a list of .*logit.* or null, 1, as many as outputs"),
        ("meanings", ["logkt"], "must be a list of .*logit.* or null, 1, as many as outputs; it is .*logkt"),
        ("decoders", "x", "must be a list of columns; it is 'x'"),
        ("time_zone", 3, "'time_zone' must be of type str"),
        ("time_zone", "dateutil//etc/localtime", "'time_zone' must be a time zone, such as Europe/Berlin; it is 'date"),
        ("sha256", {"weights.pt": 3}, "must be an object from names of files to texts"),
        ("sha256", {}, r"has no entry for weights\.pt|contains no architecture"),
    ):
        file.write_text(json.dumps({**manifest, key: value}))
        with pytest.raises(DataError, match=words):
            TorchModel.load(str(path))
    for text, words in (
        ("{", "cannot be read: spark_estimator.json: Expecting"),
        ("[" * 9999, "cannot be read: spark_estimator.json: "),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=words):
            TorchModel.load(str(path))


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"doesn't contain a TorchModel: spark_estimator\.json is missing"):
        TorchModel.load(str(tmp_path))
    with pytest.raises(DataError, match=r"doesn't contain a TorchModel: the folder does not exist"):
        TorchModel.load(str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=r"s3://bucket/model.*(there is no Spark session|No FileSystem for scheme)"):
        TorchModel.load("s3://bucket/model")


def test_categories_are_json(tmp_path: Path) -> None:
    """They need no trust. A folder that was written before there were any is read, too."""
    path = tmp_path / "model"
    categories = {"a": ["x", "Ö"], "b": {"hash": 5}, "c": "a"}
    model_of(linear(), categories=categories).save(str(path))
    file = path / "spark_estimator.json"
    manifest = json.loads(file.read_text())
    assert manifest["params"]["categories"] == categories
    assert TorchModel.load(str(path)).getCategories() == categories
    del manifest["params"]["categories"]
    file.write_text(json.dumps(manifest))
    assert TorchModel.load(str(path)).getCategories() is None


def test_dates_and_the_time_zone_are_json(tmp_path: Path) -> None:
    """A folder that was written before there were any is read, too."""
    path = tmp_path / "model"
    kinds = ("", "(1,)uint8")
    field = Field(("day", "x"), ("c0", "c1"), (1, 1), "float32", (2,), times=("date", "timestamp_ntz"), decoded=kinds)
    metadata = ModelMetadata({}, [field], [1], ["float"], zone="Asia/Kolkata")
    names = {"feature_columns": ["day", "x"], "label_columns": ["y"]}
    TorchModel(model=nn.Linear(2, 1), _metadata=metadata, **names).save(str(path))
    loaded = TorchModel.load(str(path))
    assert loaded._known.zone == "Asia/Kolkata" and loaded._inputs == (field,)
    file = path / "spark_estimator.json"
    manifest = json.loads(file.read_text())
    manifest["inputs"][0]["decoded"] = ["float32"]
    file.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="times and decoded are not as many"):
        TorchModel.load(str(path))
    del manifest["time_zone"], manifest["inputs"][0]["times"], manifest["inputs"][0]["decoded"]
    file.write_text(json.dumps(manifest))
    loaded = TorchModel.load(str(path))
    assert loaded._known.zone == "UTC" and loaded._inputs[0].all_times == ("", "")
