"""Horovod's protocol: estimators and models as base classes of a package's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pyspark.ml.param import Param, Params
from torch import nn

from spark_estimator import DataError, TorchEstimator, TorchModel
from spark_estimator.estimators.metadata import ModelMetadata
from spark_estimator.estimators.protocol import EstimatorParams, HorovodEstimator, HorovodModel, ModelParams
from spark_estimator.spark import LocalBackend, SparkBackend
from spark_estimator.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(240)


class HasTextCol(Params):
    """A client's mixin, with its own constructor."""

    text_col = Param(Params._dummy(), "text_col", "a column")

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(text_col="text")


class DuckBackend:
    """Not a subclass of Backend. Records how it is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def num_processes(self) -> int:
        return 1

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        self.calls.append((args, kwargs, env))
        return LocalBackend(1).run(fn, args, kwargs, env)


class ClientModel(TorchModel, HasTextCol):
    scale = Param(Params._dummy(), "scale", "a number")
    shift = Param(Params._dummy(), "shift", "a tensor")

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self._setDefault(optimizer=None, loss=None, loss_constructors=None, scale=1.0, outputCols=["out"])
        self._set(**keywords)
        self.setLabelColoumns(["y"])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        (output,) = self.getOutputCols() or ()
        return super()._transform(dataset).withColumn("twice", 2 * functions.col(output))


class ClientEstimator(TorchEstimator, HasTextCol):
    scale = Param(Params._dummy(), "scale", "a number")

    def __init__(self, **keywords: Any) -> None:
        super().__init__()
        self._setDefault(feature_cols=["features"], label_cols=["y"], scale=1.0, prediction_col=None)
        self._set(**keywords)
        self.setVerbose(0)
        self.prepared: tuple[Any, ...] = ()
        self.client_backend = DuckBackend()

    def _get_or_create_backend(self) -> Any:
        return self.client_backend

    def _fit_on_prepared_data(self, backend: Any, *args: Any, **keywords: Any) -> Any:
        self.prepared = (backend, *args)
        return super()._fit_on_prepared_data(backend, *args, **keywords)

    def get_model_class(self) -> type[ClientModel]:
        return ClientModel

    def _get_model_kwargs(self, model: Any, history: Any, optimizer: Any, run_id: str, metadata: Any) -> dict[str, Any]:
        return {
            "history": history,
            "model": model,
            "input_shapes": [[-1, 3]],
            "optimizer": optimizer,
            "run_id": run_id,
            "_metadata": metadata,
            "loss": self.getLoss(),
            "loss_constructors": self.getLossConstructors(),
            "scale": self.getOrDefault(self.scale),
        }


def client(tmp_path: Path, **keywords: Any) -> ClientEstimator:
    torch.manual_seed(3)
    net = nn.Linear(3, 1)
    return ClientEstimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        loss=nn.MSELoss(),
        store=Store.create(str(tmp_path / "store")),
        epochs=1,
        partitions_per_process=10,
        metrics=None,
        **keywords,
    )


def test_a_package_of_subclasses_fits_transforms_saves_and_loads(line: DataFrame, tmp_path: Path) -> None:
    estimator = client(tmp_path, scale=3.0)
    assert estimator.getOrDefault("text_col") == "text" and estimator.getPartitionsPerProcess() == 10
    frame = line.select("features", "y")
    model = estimator.fit(frame)
    assert type(model) is ClientModel and isinstance(model, HorovodModel) and isinstance(estimator, HorovodEstimator)
    ((args, kwargs, env),) = estimator.client_backend.calls
    assert len(args) == 1 and kwargs is None and env == {}
    backend, train_rows, val_rows, metadata, row_size = estimator.prepared
    assert backend is estimator.client_backend and (train_rows, val_rows, row_size) == (None, None, None)
    assert set(metadata) == {"features", "y"} and metadata["features"]["shape"] == 3

    assert (model.getOrDefault("scale"), model.getInputShapes()) == (3.0, [[-1, 3]])
    assert model.getOptimizer().param_groups[0]["params"] == list(model.getModel().parameters())
    assert isinstance(model._get_metadata(), ModelMetadata) and not hasattr(model._get_metadata(), "plan")
    model._set(shift=torch.ones(2))
    rows = model.transform(frame).orderBy("y").collect()
    assert rows[0]["twice"] == pytest.approx(2 * rows[0]["out"])

    model.write().overwrite().save(str(tmp_path / "model"))
    with pytest.raises(DataError, match="loading its parameters shift could run any code"):
        ClientModel.load(str(tmp_path / "model"))
    loaded = ClientModel.load(str(tmp_path / "model"), trust=True)
    assert type(loaded) is ClientModel
    assert loaded.getOrDefault("scale") == 3.0 and loaded.getOrDefault("shift").tolist() == [1.0, 1.0]
    assert loaded.transform(frame).orderBy("y").collect() == rows

    with pytest.warns(UserWarning, match="store is not saved"):
        estimator.write().overwrite().save(str(tmp_path / "estimator"))
    again = ClientEstimator.load(str(tmp_path / "estimator"))
    assert type(again) is ClientEstimator
    assert (again.getOrDefault("scale"), again.getFeatureCols(), again.getEpochs()) == (3.0, ["features"], 1)


def test_a_backend_that_starts_the_ranks_itself_needs_a_store_or_files(line: DataFrame, tmp_path: Path) -> None:
    estimator = client(tmp_path).setStore(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"starts the ranks with its own run\(\).*Set store="):
        estimator.fit(line.select("features", "y"))


def test_backends_by_default() -> None:
    backend = LocalBackend(1)
    assert TorchEstimator(backend=backend)._get_or_create_backend() is backend
    created = TorchEstimator(num_proc=3)._get_or_create_backend()
    assert type(created) is SparkBackend and created.num_processes() == 3
    with pytest.raises(ValueError, match="num_proc and backend can't be combined"):
        TorchEstimator(num_proc=1, backend=backend)._get_or_create_backend()


def test_what_a_subclass_returns_has_to_be_a_backend(line: DataFrame, tmp_path: Path) -> None:
    estimator = client(tmp_path)
    estimator.client_backend = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"_get_or_create_backend\(\) must be a SparkBackend"):
        estimator.fit(line)


def test_classes_by_horovods_names() -> None:
    assert isinstance(TorchEstimator(), HorovodEstimator) and isinstance(TorchEstimator(), EstimatorParams)
    assert isinstance(TorchModel(), HorovodModel) and isinstance(TorchModel(), ModelParams)
    assert not isinstance(TorchModel(), EstimatorParams)


def test_parameters_without_effect_can_be_set_and_read() -> None:
    estimator = TorchEstimator()
    defaults = {
        "CompressSparseCols": False,
        "InMemoryCacheAll": False,
        "MpStartMethod": None,
        "PartitionsPerProcess": 10,
        "ReaderPoolType": "thread",
        "ShufflingBufferSize": None,
        "TrainReaderNumWorker": 2,
        "ValReaderNumWorker": 2,
    }
    for accessor, default in defaults.items():
        assert getattr(estimator, f"get{accessor}")() == default
        with pytest.warns(UserWarning, match=" has no effect: ") as caught:
            assert getattr(estimator, f"set{accessor}")("value") is estimator
        assert caught[0].filename == __file__
        assert getattr(estimator, f"get{accessor}")() == "value"


def hand_made(**keywords: Any) -> TorchModel:
    torch.manual_seed(3)
    return TorchModel(model=nn.Linear(3, 1).eval(), feature_columns=["features"], label_columns=["y"], **keywords)


def test_a_model_made_by_hand_finds_its_columns_in_the_dataframe(line: DataFrame, tmp_path: Path) -> None:
    from pyspark.sql.types import FloatType

    model = hand_made(_metadata={"y": {"spark_data_type": FloatType}}, input_shapes=[[-1, 3]])
    row = model.transform(line).first()
    assert row is not None
    with torch.no_grad():
        expected = model.getModel()(torch.tensor(row["features"]))
    assert row["y__output"] == pytest.approx(float(expected))
    assert dict(model.transform(line).dtypes)["y__output"] == "float"
    with pytest.raises(ValueError, match="was made by hand"):
        model.predict([[1.0, 2.0, 3.0]])
    model.save(str(tmp_path / "model"))
    first = TorchModel.load(str(tmp_path / "model")).transform(line.drop("y")).first()
    assert first is not None and first["y__output"] == row["y__output"]
    with pytest.raises(ValueError, match="needs label_columns"):
        TorchModel(model=nn.Linear(3, 1), feature_columns=["features"]).transform(line)


class ByRow(TorchModel):
    """Reads a column of strings, row by row."""

    def get_prediction_fn(self) -> Callable[[Any, Any], Any]:
        def predict(model: nn.Module, row: Any) -> Any:
            numbers = torch.tensor([float(len(row["text"])), 1.0, 0.0])
            with torch.no_grad():
                return model(numbers), torch.stack([numbers[0], numbers[0] + 1])

        return predict


def test_an_overridden_prediction_function_gets_each_row(spark: SparkSession, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = ByRow(model=nn.Linear(3, 1), label_columns=["y", "z"], output_cols=["p", "q"])
    frame = spark.createDataFrame([("a", 1), ("abcd", 2)], "text string, `n.m` int")
    rows = model.transform(frame).orderBy("text").collect()
    with torch.no_grad():
        expected = float(model.getModel()(torch.tensor([4.0, 1.0, 0.0])))
    assert rows[1]["p"] == pytest.approx(expected) and list(rows[1]["q"]) == [4.0, 5.0] and rows[1]["n.m"] == 2
    model.save(str(tmp_path / "model"))
    assert ByRow.load(str(tmp_path / "model"), trust=True).transform(frame).orderBy("text").collect() == rows


@pytest.mark.parametrize("passes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_minibatch_function_of_nine_arguments(
    line: DataFrame, estimator: Callable[..., TorchEstimator], passes: int
) -> None:
    def minibatch(
        model: Any,
        optimizer: Any,
        transform_outputs: Any,
        loss_fn: Any,
        inputs: Any,
        labels: Any,
        sample_weights: Any,
        backward_passes_per_step: int,
        batch_idx: int,
    ) -> Any:
        if batch_idx % backward_passes_per_step == 0:
            if batch_idx != 0:
                optimizer.step()
            optimizer.zero_grad()
        outputs, labels = transform_outputs(model(*inputs), labels)
        loss = loss_fn(outputs, labels, sample_weights)
        (loss / backward_passes_per_step).backward()
        return outputs, loss

    common = {"backward_passes_per_step": passes, "num_proc": 1}
    by_hand = estimator(train_minibatch_fn=minibatch, **common).fit(line).getModel()
    built_in = estimator(**common).fit(line).getModel()
    assert torch.allclose(by_hand.weight, built_in.weight)
    with pytest.raises(ValueError, match="takes seven arguments"):
        estimator(train_minibatch_fn=lambda *seven: None, backward_passes_per_step=2).fit(line)


@pytest.mark.slow
def test_a_transformation_of_rows_runs_in_each_epoch(
    spark: SparkSession, estimator: Callable[..., TorchEstimator], tmp_path: Path
) -> None:
    """With rows that Spark's tasks send, and with files; features and labels are those that it returns."""
    log = tmp_path / "calls"

    def measured(row: dict[str, Any]) -> dict[str, Any]:
        with log.open("a") as file:
            file.write(f"{row['text']}\n")
        length = float(len(row["text"]))
        return {"features": torch.tensor([length, 1.0, 0.0]), "y": length}

    frame = spark.createDataFrame(
        [("a" * number, float(number)) for number in range(1, 9)], "text string, features float"
    )
    frame = frame.withColumn("y", frame.features)
    common = {
        "transformation_fn": measured,
        "transformation_removed_fields": ["text"],
        "transformation_edit_fields": [("features", "float32", (3,), False)],
        "epochs": 3,
        "validation": None,
        "num_proc": 2,
    }
    model = estimator(**common).fit(frame)
    assert len(model.getHistory()) == 3
    calls = log.read_text().split()
    # Once on the driver, which tries the first rows, and once in each epoch.
    assert [calls.count("a" * number) for number in (7, 8)] == [1 + 3, 1 + 3]
    files = str(tmp_path / "files")
    frame.write.parquet(files)
    by_files = estimator(**common).fit(spark.read.parquet(files))
    assert torch.isfinite(by_files.getModel().weight).all()
    with pytest.raises(DataError, match="nulls='drop' isn't possible"):
        estimator(**common, nulls="drop").fit(frame)
