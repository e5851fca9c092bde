"""Trainings of Keras models as two ranks run them, on each backend: without Spark, on rows of a Parquet file."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras")
pytest.importorskip("pyspark")

from tests.estimators import keras_ranks
from tests.keras.conftest import RankPool


@pytest.fixture(
    scope="module", params=[*(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "jax")), "tensorflow"]
)
def ranks(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    pool = RankPool(request.param)
    yield pool
    pool.close()


pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "case",
    [
        keras_ranks.equal_to_one_process,
        keras_ranks.exact_sums,
        keras_ranks.few_rows,
        keras_ranks.callbacks_and_best,
        keras_ranks.schedules_begin_at_the_optimizer_s_rate,
        keras_ranks.rates_that_user_code_sets,
        keras_ranks.averages_weights,
        keras_ranks.own_metrics_get_tensors,
    ],
    ids=lambda case: case.__name__,
)
def test_ranks_train_as_one_process_would(ranks: RankPool, tmp_path: Path, case: Any) -> None:
    keras_ranks.write_table(tmp_path)
    ranks.run(case, str(tmp_path), timeout=250)


def test_a_run_resumes_with_the_rate_of_its_ranks(ranks: RankPool, tmp_path: Path) -> None:
    """Two ranks, one, and two again."""
    keras_ranks.write_table(tmp_path)
    alone = RankPool(ranks.backend, ranks=1)
    try:
        for pool, epochs, rates in ((ranks, 2, [0.16, 0.16]), (alone, 4, [0.04, 0.04]), (ranks, 5, [0.08])):
            pool.run(keras_ranks.resumes_with_its_ranks, str(tmp_path), epochs, rates, timeout=250)
        alone.run(keras_ranks.rates_that_user_code_sets, str(tmp_path), timeout=250)
    finally:
        alone.close()


def test_a_run_of_keras_2_resumes_with_a_rate_that_was_set(ranks: RankPool, tmp_path: Path) -> None:
    if ranks.backend != "tensorflow":
        pytest.skip("Keras 2 computes with TensorFlow")
    pytest.importorskip("tf_keras")
    keras_ranks.write_table(tmp_path)
    ranks.run(keras_ranks.keeps_a_rate_of_keras_2, str(tmp_path), timeout=250)


def test_keras_2_averages_weights(ranks: RankPool, tmp_path: Path) -> None:
    if ranks.backend != "tensorflow":
        pytest.skip("Keras 2 computes with TensorFlow")
    pytest.importorskip("tf_keras")
    keras_ranks.write_table(tmp_path)
    ranks.run(keras_ranks.averages_weights, str(tmp_path), "tf_keras", timeout=250)


def test_a_run_resumes_what_callbacks_have_set(ranks: RankPool, tmp_path: Path) -> None:
    keras_ranks.write_table(tmp_path)
    ranks.run(keras_ranks.resumes_what_callbacks_have_set, str(tmp_path), timeout=250)


@pytest.mark.slow
def test_a_run_goes_on_within_an_epoch_and_another_s_is_refused_in_words(ranks: RankPool, tmp_path: Path) -> None:
    keras_ranks.write_table(tmp_path)
    for refused in ranks.run(keras_ranks.goes_on, str(tmp_path), timeout=250):
        for text, words in zip(
            refused,
            (
                "learning_rate=0.009999999776482582 in the checkpoint, learning_rate=0.10000000149011612 now",
                "loss: mse in the checkpoint, mae now",
                "parameters: batch_size=4 in the checkpoint, batch_size=5 now",
                "model: a layer of class ",
            ),
            strict=True,
        ):
            assert words in text
