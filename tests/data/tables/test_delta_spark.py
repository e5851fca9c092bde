"""Ranks read from the files of Delta tables what Spark reads, in an environment of a Spark for which there is Delta."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.data.tables import delta_on_spark

ROOT = Path(__file__).parents[3]
PYTHON = Path(os.environ.get("SPARK_ESTIMATOR_TEST_DELTA_PYTHON", ROOT / "build/matrix/spark-4.1/bin/python"))
JARS = Path(os.environ.get("SPARK_ESTIMATOR_TEST_JARS", ROOT.parent / "shared" / "jars"))
NAMES = ("delta-spark_2.13-4.3.0.jar", "delta-storage-4.3.0.jar")
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_rows_are_those_of_spark(tmp_path: Path, kind: str) -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is missing: make matrix CELL=spark-4.1, or set SPARK_ESTIMATOR_TEST_DELTA_PYTHON")
    if not all((JARS / name).exists() for name in NAMES):
        pytest.skip(f"{JARS} has no jar of io.delta:delta-spark_2.13:4.3.0 (Maven); SPARK_ESTIMATOR_TEST_JARS names it")
    options = [f"--conf {name}={value}" for name, value in CONF.items()]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(PYTHON),
        "PYSPARK_SUBMIT_ARGS": " ".join(
            [f"--jars {','.join(str(JARS / name) for name in NAMES)}", *options, "pyspark-shell"]
        ),
    }
    command = [str(PYTHON), delta_on_spark.__file__, kind, str(tmp_path / "tables")]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    lines = dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)
    assert "both typeWidening and deletionVectors" in lines.pop("both", run.stderr[-2000:])
    assert lines == {
        "vectors": "180 rows",
        "name": "201 rows",
        "id": "201 rows",
        "widened": "201 rows",
        "v2": "200 rows",
        "version 1": "100 rows",
        "moment": "100 rows",
    }
