"""The columns of `TransformersModel` that Spark ML's evaluators read."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from sklearn import metrics

from spark_estimator import DataError, TransformersModel
from tests.scenarios.huggingface import tiny

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENTENCES = tiny.sentences(60)
TEXTS = [row["text"] for row in SENTENCES]


@functools.cache
def net_and_logits() -> tuple[Any, Any]:
    """A net that finds each class in half of the texts, and its [texts, 2] logits."""
    net, tokenizer = tiny.classifier().eval(), tiny.tokenizer()
    with torch.no_grad():
        encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
        net.classifier.weight *= 1000  # those of random numbers are almost the same for all texts
        first, second = net(**encoded).logits.T
        net.classifier.bias[0] += (second - first).quantile(0.5)
        return net, net(**encoded).logits.double().numpy()


def classifier_of(labels: list[Any], label_type: str, **parameters: Any) -> TransformersModel:
    return TransformersModel(
        model=net_and_logits()[0],
        tokenizer=tiny.tokenizer(),
        task="classification",
        labels=labels,
        label_type=label_type,
        feature_columns=["text"],
        label_columns=["kind"],
        **parameters,
    )


def test_rows_are_ranked_by_the_difference_of_both_logits(spark: SparkSession) -> None:
    from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator

    names = {"prediction_col": "prediction", "raw_prediction_col": "rawPrediction", "probability_col": "probability"}
    labels = numpy.array([row["label"] for row in SENTENCES])
    rows = [(text, float(label)) for text, label in zip(TEXTS, labels, strict=True)]
    frame = spark.createDataFrame(rows, "text string, label double").coalesce(1)
    predicted = classifier_of(["bad", "good"], "string", **names).transform(frame).cache()
    scores = net_and_logits()[1]
    right = metrics.roc_auc_score(labels, scores[:, 1] - scores[:, 0])
    assert right != pytest.approx(metrics.roc_auc_score(labels, scores[:, 1]), abs=0.01)
    assert BinaryClassificationEvaluator().evaluate(predicted) == pytest.approx(right)
    right = metrics.log_loss(labels, torch.softmax(torch.tensor(scores), 1).numpy())
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(predicted) == pytest.approx(right, rel=1e-5)
    predicted.unpersist()


@pytest.mark.parametrize("labels", [[4, 5], [1, 0], [-1, 1], [0, 1]])
def test_a_class_of_integers_is_its_own_number(labels: list[int]) -> None:
    """As evaluators compare it with the label. A vector has no place for other numbers than 0, 1, 2, ..."""
    model = classifier_of(labels, "int", prediction_col="prediction")
    predicted = model._make_frame_predictor().predict_frame({"text": [*TEXTS, None]})
    best = net_and_logits()[1].argmax(1)
    right = [float(labels[place]) for place in best]
    assert len(set(right)) == 2
    assert predicted["prediction"].tolist()[:-1] == predicted["kind__output"].tolist()[:-1] == right
    assert predicted["prediction"].isna().tolist()[-1]
    for param in ("raw_prediction_col", "probability_col"):
        vectors = classifier_of(labels, "int", **{param: "vector"})
        if labels == [0, 1]:
            assert len(vectors._make_prediction_columns()) == 2
        else:
            with pytest.raises(
                DataError, match=rf"{param} is a vector .*; the classes are \[{labels[0]}, {labels[1]}\]"
            ):
                vectors._make_prediction_columns()


def test_a_class_of_texts_is_its_place() -> None:
    best = net_and_logits()[1].argmax(1).tolist()
    model = classifier_of(["bad", "good"], "string", prediction_col="prediction")
    predicted = model._make_frame_predictor().predict_frame({"text": TEXTS})
    assert predicted["prediction"].tolist() == best
    assert predicted["kind__output"].tolist() == [("bad", "good")[place] for place in best]
    truths = classifier_of([False, True], "boolean", prediction_col="prediction", probability_col="probability")
    assert truths._make_frame_predictor().predict_frame({"text": TEXTS})["prediction"].tolist() == best
