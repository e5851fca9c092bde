"""A user's driver program: `KerasEstimator` among Spark ML's own stages, and a model that is returned through a store.

Argument: a folder. It prints its results on a line ``RESULT {...}``.
"""

import json
import os
import sys

(folder,) = sys.argv[1:]
os.environ["KERAS_BACKEND"] = "torch"

import keras  # noqa: E402  # it reads KERAS_BACKEND
import numpy  # noqa: E402  # it reads KERAS_BACKEND
from pyspark.ml import Pipeline, PipelineModel  # noqa: E402  # it reads KERAS_BACKEND
from pyspark.ml.evaluation import MulticlassClassificationEvaluator  # noqa: E402
from pyspark.ml.feature import StringIndexer, VectorAssembler  # noqa: E402
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder  # noqa: E402
from sessions import session  # noqa: E402

from spark_estimator.estimators.persistence import model_transfer  # noqa: E402
from spark_estimator.keras import KerasEstimator  # noqa: E402
from spark_estimator.spark import SparkBackend  # noqa: E402
from spark_estimator.store import Store  # noqa: E402


def wrong() -> keras.Model:
    """Always takes the other class, until it is trained."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, activation="softmax")])
    model.set_weights([numpy.array([[-1.0, 1.0], [1.0, -1.0]]), numpy.zeros(2)])
    return model


class Printing(keras.callbacks.Callback):
    """Prints what its rank sees."""

    def on_train_begin(self, logs: object = None) -> None:
        print(f"A={os.environ.get('A')}", flush=True)


def main() -> None:
    spark = session("local[2]")
    numbers = numpy.random.default_rng(2).standard_normal((90, 2))
    rows = [(float(a), float(b), "a" if a > b else "b") for a, b in numbers]
    frame = spark.createDataFrame(rows, "a double, b double, kind string").cache()
    made = KerasEstimator(
        num_proc=1,
        model=wrong(),
        optimizer=keras.optimizers.SGD(1e-9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        feature_cols=["assembled"],
        label_cols=["label"],
        prediction_col="prediction",
        probability_col="probability",
        batch_size=16,
        epochs=8,
        verbose=0,
    )
    stages = [
        StringIndexer(inputCol="kind", outputCol="label", stringOrderType="alphabetAsc"),
        VectorAssembler(inputCols=["a", "b"], outputCol="assembled"),
        made,
    ]
    grid = ParamGridBuilder().addGrid(made.learning_rate, [1e-9, 0.5]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    tuned = CrossValidator(
        estimator=Pipeline(stages=stages), estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=4
    ).fit(frame)
    results = {"folds": tuned.avgMetrics, "tuned": evaluator.evaluate(tuned.transform(frame))}
    tuned.bestModel.write().overwrite().save(f"{folder}/pipeline")
    loaded = PipelineModel.load(f"{folder}/pipeline")
    results["loaded"] = evaluator.evaluate(loaded.transform(frame))
    results["history"] = sorted(name for name in loaded.stages[-1].getHistory() if not name.startswith("time_"))
    tuned.write().overwrite().save(f"{folder}/tuned")
    again = CrossValidatorModel.load(f"{folder}/tuned")
    results["again"] = evaluator.evaluate(again.transform(frame))
    results["grid"] = [list(params.values()) for params in again.getEstimatorParamMaps()]
    shares = loaded.transform(frame).select("probability").collect()
    results["shares"] = max(abs(sum(row.probability) - 1) for row in shares)

    model_transfer.LARGE = 0
    store = Store.create(f"{folder}/store")
    whole = Pipeline(stages=stages[:2]).fit(frame).transform(frame)
    params = {made.learning_rate: 0.5, made.store: store, made.run_id: "run", made.callbacks: [Printing()]}
    with open(f"{folder}/lines", "w") as lines:
        backend = SparkBackend(1, {"A": "of the backend"}, stdout=lines, verbose=0)
        trained = made.copy({**params, made.num_proc: None, made.backend: backend}).fit(whole)
    with open(f"{folder}/lines") as lines:
        results["lines"] = lines.read()
    kept = keras.saving.load_model(f"{folder}/store/runs/run/model.keras")
    pairs = zip(trained.getModel().get_weights(), kept.get_weights(), strict=True)
    results["by the store"] = all(bool((weight == other).all()) for weight, other in pairs)
    spark.stop()
    try:
        made.fit(whole)
    except Exception as error:
        results["stopped"] = f"{type(error).__name__}: {error}"
    print("RESULT " + json.dumps(results), flush=True)


main()
