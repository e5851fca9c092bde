"""What the use cases share: results are complete, or an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from benchmarks.interleaved import BenchmarkError
from benchmarks.tpcx_ai.use_case import PHASES, UseCase, write_csv


class Doubles(UseCase):
    """Predicts twice the number of a row; `lost` rows get no prediction."""

    number, title, measure, higher, level, rows, epochs = 0, "doubles", "share", True, 0.9, 10, 1
    lost = 0

    def generate(self, folder: Path, rows: int, seed: int) -> None:
        folder.mkdir(parents=True)
        write_csv(folder / "rows.csv", ("id", "x"), [(number, number) for number in range(rows)])
        write_csv(folder / "truth.csv", ("id", "truth"), [(number, 2 * number) for number in range(rows)])

    def load(self, spark: Any, folder: Path) -> Any:
        return spark.read.csv(str(folder / "rows.csv"), header=True, inferSchema=True)

    def preprocess(self, data: Any, work: Path, *, training: bool) -> Any:
        return data.withColumn("doubled", functions.col("x") * 2)

    def train(self, data: Any, ranks: int, work: Path) -> None:
        write_csv(work / "model.csv", ("rows", "ranks"), [(data.count(), ranks)])

    def serve(self, spark: Any, data: Any, work: Path) -> Any:
        return data.where(f"id >= {self.lost}").selectExpr("id", "doubled AS prediction")

    def score(self, pairs: Sequence[tuple[str, str]]) -> float:
        return sum(truth == predicted for truth, predicted in pairs) / len(pairs)


@pytest.mark.slow
def test_phases_and_quality(spark: SparkSession, tmp_path: Path) -> None:
    case = Doubles()
    for name, rows in (("training", 8), ("serving", 4)):
        case.generate(tmp_path / "source" / name, rows, 0)
    (tmp_path / "work").mkdir()
    result = case.run(spark, tmp_path / "source", tmp_path / "work", 2)
    assert (result.rows, result.held_out, result.quality, result.level) == (8, 4, 1.0, 0.9)
    assert tuple(result.seconds) == PHASES and min(result.seconds.values()) > 0
    assert (tmp_path / "work" / "model.csv").read_text() == "rows,ranks\n8,2\n"
    case.lost = 1
    (tmp_path / "again").mkdir()
    with pytest.raises(BenchmarkError, match="4 rows were served, and 3 have a prediction"):
        case.run(spark, tmp_path / "source", tmp_path / "again", 2)
