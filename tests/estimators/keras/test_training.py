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
    ],
    ids=lambda case: case.__name__,
)
def test_ranks_train_as_one_process_would(ranks: RankPool, tmp_path: Path, case: Any) -> None:
    keras_ranks.write_table(tmp_path)
    ranks.run(case, str(tmp_path), timeout=250)


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
