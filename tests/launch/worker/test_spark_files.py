"""`SparkFiles` on a rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from spark_estimator.spark import run, run_elastic

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


@pytest.mark.parametrize("start", [run, run_elastic])
def test_a_rank_finds_the_files_that_spark_has_brought(
    spark: Any, tmp_path: Path, start: Callable[..., list[str]]
) -> None:
    file = tmp_path / f"words-{start.__name__}.txt"
    file.write_text("of the driver")
    spark.sparkContext.addFile(str(file))

    def work(name: str) -> str:
        from pyspark import SparkFiles

        return Path(SparkFiles.get(name)).read_text()

    assert start(work, args=(file.name,), num_proc=1) == ["of the driver"]
