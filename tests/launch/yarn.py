"""Submits the program of ``drivers/on_yarn.py`` to YARN, as a user does by spark-submit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.hadoop_daemons import Hadoop
from tests.launch import clusters

#: The parts of the program, and what each gives.
PARTS = {
    "run": [0, "of --py-files", "container"],
    "rows": 200,
    "fit": [3, True, 200],
    "loop": [0, 10],
    "petastorm": 200,
}


def list_settings(hadoop: Hadoop) -> dict[str, str]:
    """Return the settings of a program with two small executors."""
    java = hadoop.environ()["JAVA_HOME"]
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        # In cluster mode the driver's Python, with torch, is in it.
        "spark.driver.memoryOverhead": "2g",
        "spark.yarn.jars": f"local:{clusters.SPARK_HOME}/jars/*",
        "spark.yarn.appMasterEnv.JAVA_HOME": java,
        "spark.yarn.appMasterEnv.PYTHONPATH": str(clusters.ROOT),
        "spark.executorEnv.JAVA_HOME": java,
        "spark.executorEnv.PYTHONPATH": str(clusters.ROOT),
        "spark.pyspark.python": sys.executable,
        "spark.yarn.am.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
    }


@contextlib.contextmanager
def submit(
    hadoop: Hadoop,
    tmp_path: Path,
    mode: str,
    *arguments: str,
    settings: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[clusters.Driver]:
    """Run the program on YARN until the end of the block; its result is in the file ``result.json``."""
    archive = tmp_path / "of_files.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("of_files.py", "def text():\n    return 'of --py-files'\n")
    conf = {**list_settings(hadoop), **(settings or {})}
    command = [f"{clusters.SPARK_HOME}/bin/spark-submit", "--master", "yarn", "--deploy-mode", mode]
    command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    command += ["--py-files", str(archive), str(clusters.DRIVERS / "on_yarn.py"), *arguments]
    log = tmp_path / f"submit-{mode}-{time.monotonic_ns()}.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
            env=clusters.environment(**{**hadoop.environ(), **(env or {})}),
            cwd=tmp_path,
        )
    try:
        yield clusters.Driver(process, log)
    finally:
        clusters.kill_group(process)
