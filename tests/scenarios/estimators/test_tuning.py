"""The estimator among Spark ML's own: pipelines, grids, folds, and evaluators that read its predictions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
import torchmetrics
from torch import nn

from spark_estimator import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Make = Callable[..., TorchEstimator]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def flowers(spark: SparkSession) -> DataFrame:
    """Two numbers a, b and a text: which of them is larger."""
    numbers = numpy.random.default_rng(2).standard_normal((90, 2))
    rows = [(float(a), float(b), "a" if a > b else "b") for a, b in numbers]
    return spark.createDataFrame(rows, "a double, b double, kind string").cache()


@pytest.mark.timeout(600)
def test_folds_over_a_pipeline(flowers: DataFrame, estimator: Make, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder, TrainValidationSplit

    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), "bias": torch.zeros(2)})  # always wrong
    made = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1e-9),
        loss=nn.CrossEntropyLoss(),
        feature_cols=["assembled"],
        label_cols=["label"],
        prediction_col="prediction",
        num_proc=1,
        epochs=6,
    )
    stages = [
        StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc"),
        VectorAssembler(inputCols=["a", "b"], outputCol="assembled"),
        made,
    ]
    grid = ParamGridBuilder().addGrid(made.learning_rate, [1e-9, 0.5]).build()  # type: ignore[attr-defined]
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    parameters = {"estimator": Pipeline(stages=stages), "evaluator": evaluator, "seed": 4}
    split = TrainValidationSplit(trainRatio=0.7, estimatorParamMaps=grid, **parameters).fit(flowers)
    assert split.validationMetrics[0] == 0.0
    assert split.validationMetrics[1] > 0.8
    best = CrossValidator(numFolds=3, estimatorParamMaps=grid[1:], **parameters).fit(flowers)
    assert best.avgMetrics[0] > 0.8
    best.write().overwrite().save(str(tmp_path / "tuned"))
    loaded = CrossValidatorModel.load(str(tmp_path / "tuned"))
    assert evaluator.evaluate(loaded.transform(flowers)) == evaluator.evaluate(best.transform(flowers)) > 0.8
    assert [list(grid_point.values()) for grid_point in loaded.getEstimatorParamMaps()] == [[0.5]]


@pytest.mark.timeout(400)
def test_the_options_of_steps_are_in_grids(flowers: DataFrame, estimator: Make) -> None:
    """Numbers and names: where all gradients are clipped to nothing, the model stays always wrong."""
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.feature import StringIndexer
    from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit

    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), "bias": torch.zeros(2)})
    made: Any = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.5),
        loss=nn.CrossEntropyLoss(),
        metrics={"accuracy": torchmetrics.classification.MulticlassAccuracy(2)},
        feature_cols=["a", "b"],
        label_cols=["label"],
        prediction_col="prediction",
        num_proc=1,
        epochs=20,
        validation=0.25,
        restore_best=True,
        monitor="validation.accuracy",
        mode="max",
        verbose=0,
    )
    indexer = StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc")
    rows = indexer.fit(flowers).transform(flowers)
    names = {made.warmup_ratio: 0.1, made.on_nonfinite: "skip", made.validate_every_steps: 1}
    grid = ParamGridBuilder().baseOn({**names, made.lr_scheduler: "cosine"})
    grid = grid.addGrid(made.gradient_clip_norm, [1e-9, 1.0]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    split = TrainValidationSplit(estimator=made, estimatorParamMaps=grid, evaluator=evaluator, seed=4).fit(rows)
    for grid_point, accuracy in zip(grid, split.validationMetrics, strict=True):
        assert (accuracy > 0.8) if grid_point[made.gradient_clip_norm] == 1.0 else (accuracy < 0.2), grid_point
    assert split.bestModel.getHistory()[0]["validations"][0]["step"] == 1


@pytest.mark.timeout(500)
@pytest.mark.parametrize("kind", ["TrainValidationSplit", "CrossValidator"])
def test_the_best_model_names_what_it_was_trained_with(
    flowers: DataFrame, estimator: Make, tmp_path: Path, kind: str
) -> None:
    from pyspark.ml import tuning
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator

    net = nn.Linear(2, 2)
    net.load_state_dict({"weight": torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), "bias": torch.zeros(2)})
    made: Any = estimator(
        model=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.5),
        loss=nn.CrossEntropyLoss(),
        feature_cols=["a", "b"],
        label_cols=["label"],
        prediction_col="prediction",
        num_proc=2,
        epochs=12,
        verbose=0,
    )
    rows = flowers.selectExpr("a", "b", "cast(kind = 'b' as double) label")
    options = (made.gradient_clip_norm, made.lr_scheduler, made.warmup_steps, made.mixed_precision)
    values = ([1e-9, "linear", 0, None], [1.0, "cosine", 2, "bf16"], [1.0, "constant", 2, "fp16"])
    grid = [dict(zip(options, each, strict=True)) for each in values]
    more = {"trainRatio": 0.7} if kind == "TrainValidationSplit" else {"numFolds": 2}
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    search = getattr(tuning, kind)(
        estimator=made, estimatorParamMaps=grid, evaluator=evaluator, seed=4, parallelism=2, **more
    ).fit(rows)
    scores = search.validationMetrics if more.get("trainRatio") else search.avgMetrics
    assert scores[0] < 0.2 and min(scores[1:]) > 0.8
    best = values[scores.index(max(scores))]
    search.bestModel.write().overwrite().save(str(tmp_path / "best"))
    for model in (search.bestModel, TorchModel.load(str(tmp_path / "best"))):
        params = model.getTrainingParams()
        assert [params[option.name] for option in options] == best and params["epochs"] == 12
        assert "model" not in params
        (line,) = [line for line in model.explainParams().splitlines() if line.startswith("training_params: ")]
        assert all(f"{option.name!r}: {value!r}" in line for option, value in zip(options, best, strict=True)), line
