"""A rank that uses more memory than its YARN container may: the error names the limit and the setting."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.hadoop_daemons import start_hadoop
from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_memory_limit_of_yarn_is_told(tmp_path: Path) -> None:
    with start_hadoop(tmp_path / "hadoop", yarn=True) as hadoop:
        java = hadoop.environ()["JAVA_HOME"]
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.yarn.jars": f"local:{clusters.SPARK_HOME}/jars/*",
            "spark.yarn.appMasterEnv.JAVA_HOME": java,
            "spark.executorEnv.JAVA_HOME": java,
            "spark.executorEnv.PYTHONPATH": str(clusters.ROOT),
            "spark.pyspark.python": sys.executable,
            "spark.yarn.am.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.instances": "2",
            "spark.executor.cores": "1",
        }
        arguments = [f"{name}={value}" for name, value in settings.items()]
        program = ("lost_executors.py", "yarn", "fixed,elastic", "memory", *arguments)
        with clusters.driver(*program, folder=tmp_path, env=hadoop.environ()) as driver:
            errors = driver.wait(400)
    for text in map(str, errors.values()):
        assert re.search(
            r"is out of contact: its Spark executor was killed by YARN for exceeding its container's physical memory "
            r"limit \([\d.]+ [KMG]B of [\d.]+ [KMG]B physical memory used\)\. .* raise spark\.executor\.memoryOverhead",
            text,
        ), errors
    assert list(errors) == ["fixed memory", "elastic memory"]
