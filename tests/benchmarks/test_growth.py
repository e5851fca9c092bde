"""The benchmark of growth: each case predicts what it should, and one that does not is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

from dataclasses import replace

from benchmarks import growth
from benchmarks.interleaved import BenchmarkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("name", ["labels", "columns", "outputs", "ranks", "partitions", "files", "categories"])
def test_each_case(spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, transform = growth.measure(spark, name, 2)
    assert fit > 0 and transform > 0
    if name == "labels":
        make, sizes = growth.CASES[name]
        monkeypatch.setitem(growth.CASES, name, (lambda *arguments: replace(make(*arguments), mean=9.0), sizes))
        with pytest.raises(BenchmarkError, match=r"labels, 2: the mean of the predictions is 0\.4995, and not 9\.0"):
            growth.measure(spark, name, 2)
