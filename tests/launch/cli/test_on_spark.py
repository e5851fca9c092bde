"""``horovodrun --spark``: a script with arguments on ranks in Spark, with horovodrun's output and exit status."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.launch.cli.flags import parse_arguments
from spark_estimator.launch.cli.on_spark import check_spark
from tests.launch import clusters


def script_of(*arguments: str) -> list[str] | None:
    options = parse_arguments(arguments)[1]
    return check_spark(options, options.command)


def test_the_command_is_a_python_script() -> None:
    assert script_of("-np", "2", "python", "train.py") is None
    assert script_of("-np", "2", "--spark", "python3.11", "-u", "train.py", "--lr", "1") == ["train.py", "--lr", "1"]
    assert script_of("-np", "2", "--spark", "train.py", "a") == ["train.py", "a"]
    for command in (["bash", "train.sh"], ["python", "-c", "1"], ["python"]):
        with pytest.raises(ValueError, match="--spark runs a Python script"):
            script_of("-np", "2", "--spark", *command)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--spark", "-H", "a:1"], "--hosts and --spark exclude each other"),
        (["--spark", "--min-np", "1"], "--min-np and --spark exclude each other"),
        (["--spark", "--master", "local[2]", "--remote", "sc://a"], "--master and --remote exclude each other"),
        (["--spark", "--conf", "name"], "--conf name: it must be NAME=VALUE"),
        (["--master", "local[2]"], "--master is for --spark, which is not set"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        script_of("-np", "2", *flags, "train.py")


def test_a_script_runs_in_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    (tmp_path / "train.py").write_text(
        "import sys, torch\nimport horovod.torch as hvd\nhvd.init()\n"
        "print(sys.argv[1:], hvd.rank(), hvd.allreduce(torch.ones(1), op=hvd.Sum).item())\n"
        "if hvd.rank() == 1:\n    sys.exit(int(sys.argv[1]))\n"
    )
    settings = ("--conf", "spark.ui.enabled=false", "--master", "local[2]")
    command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", "--spark", *settings]
    done = subprocess.run(
        [*command, "--output-filename", "out", "python", "train.py", "3", "--lr=1"],
        env=clusters.environment(PYSPARK_PYTHON=sys.executable),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:['3', '--lr=1'] {rank} 2.0\n" in done.stdout
        assert "2.0" in (tmp_path / "out" / f"rank.{rank}" / "stdout").read_text()
    assert re.search(r"horovodrun: rank 1 .* called sys\.exit\(3\)", done.stderr), done.stderr
