"""The benchmark of readers: its numbers are complete, and it detects a backend that does not return every row once."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyspark")

import torch

from benchmarks.data import petastorm_reader, reader, reader_spark
from benchmarks.interleaved import BenchmarkError

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_backend_is_timed(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    reader.main(["--rows", "2000", "--rounds", "1", "--part", "epochs", "--json", str(tmp_path / "out.json")])
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "out.json").read_text())
    assert [run["rows"] for run in results["runs"]] == [2000] * 3 + [200] * 3
    assert [goal["goal"] for goal in results["goals"]] == [0.6, 0.6]
    for run in results["runs"]:
        assert len(run["seconds"]) == 1 and run["seconds"][0] > 0
        assert run["name"] in printed

    # Those that begin with a DataFrame, in the session that the tests share.
    data = reader.Data.create(tmp_path / "20", 3000, 20)
    groups = reader_spark.first_epoch_backends(spark, data.folder, data.columns, 20, 64)
    groups["vectors"] = reader_spark.vector_backends(spark, data.folder, data.columns)
    backends = list(itertools.chain(*groups.values()))
    mean = float(data.matrix[:, 0].mean(dtype=float))
    for backend in backends:
        assert abs(backend.run() - mean) < 1e-4, backend.name
    names = {run["name"] for run in results["runs"]} | {backend.name for backend in backends}
    compared = {name for goal in reader.goals() for name in (goal.backend, goal.peer)}
    assert all("petastorm" in name or " 784," in name for name in compared - names)


def test_a_backend_that_loses_repeats_or_changes_a_row_is_an_error(tmp_path: Path) -> None:
    data = reader.Data.create(tmp_path / "data", 12, 784)

    def fingerprint(rows: numpy.ndarray) -> dict[str, int]:
        return petastorm_reader.fingerprint(iter([{"x": rows[:5]}, {"x": rows[5:]}]), ["x"])

    data.check("mixed", fingerprint(data.matrix[::-1]))
    changed = data.matrix.copy()
    changed[3, 700] += 1e-3
    for rows in (data.matrix[:11], data.matrix[[0, *range(11)]], changed):
        with pytest.raises(BenchmarkError, match="wrong, rows of 784: an epoch has"):
            data.check("wrong", fingerprint(rows))


def test_a_petastorm_that_does_not_answer_is_named(tmp_path: Path) -> None:
    command = {"mode": "horovod", "folder": "/data/784", "columns": ["x"], "batch": 4, "rows": 4, "check": True}
    if importlib.util.find_spec("petastorm") is None:
        with reader.Petastorm(sys.executable) as petastorm:
            with pytest.raises(BenchmarkError, match=r"petastorm \(horovod, 784\): .*No module named 'petastorm'"):
                petastorm.ask(**command)
    with pytest.raises(BenchmarkError, match="--petastorm /none/python"):
        reader.Petastorm("/none/python")
