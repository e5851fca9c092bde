"""A script as a function: its module, its arguments, its end."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

from spark_estimator import HorovodRunner
from spark_estimator.errors import PreflightError, WorkerFailedError
from spark_estimator.launch.job.script import Script

TEXT = """import os
import sys
if __name__ == "__main__":
    rank = os.environ["RANK"]
    open(os.path.join(sys.argv[1], rank), "w").write(" ".join([__file__, *sys.argv[2:]]))
    sys.exit(int(sys.argv[2]))
"""


def test_each_rank_runs_the_script_with_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    assert HorovodRunner(np=-2).run(str(path), tmp_path, 0, "--lr=0.1") is None
    assert [(tmp_path / rank).read_text() for rank in "01"] == [f"{path} 0 --lr=0.1"] * 2


def test_an_exit_status_is_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    with pytest.raises(WorkerFailedError, match=r"sys.exit\(7\)"):
        HorovodRunner(np=-1).run(str(path), tmp_path, 7)


def test_its_text_travels(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("1 / 0")
    pickled = cloudpickle.dumps(Script(path))
    path.unlink()
    program = cloudpickle.loads(pickled)
    before = sys.modules["__main__"], sys.argv[:], sys.path[:]
    try:
        with pytest.raises(ZeroDivisionError):
            program()
    finally:
        sys.modules["__main__"], sys.argv[:], sys.path[:] = before


def test_what_cannot_run_is_refused_on_the_driver(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"absent\.py'.*can't read this script"):
        HorovodRunner(np=-1).run(str(tmp_path / "absent.py"))
    with pytest.raises(TypeError, match="not the keyword arguments"):
        HorovodRunner(np=-1).run("train.py", steps=1)
