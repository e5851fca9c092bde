"""The demo works: both ranks report, and the network learns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_estimator
from spark_estimator import demo
from spark_estimator.errors import JavaNotFoundError, remove_links

ROOT = Path(spark_estimator.__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_from_the_command_line(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    answer = subprocess.run(
        [sys.executable, "-m", "spark_estimator", "demo"],
        cwd=tmp_path,
        env=environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2: epoch 1/15, loss " in answer.stdout
        assert f"rank {rank} of 2: epoch 15/15, loss " in answer.stdout
    accuracy = re.search(r"accuracy on 360 held-out images: (\d\.\d+)", answer.stdout)
    assert accuracy
    assert float(accuracy[1]) >= 0.97
    assert "wall time: " in answer.stdout
    assert "horovodrun -np 2 python train.py" in answer.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_its_function_is_an_ordinary_one_to_run(spark: object) -> None:
    # One epoch reads better than chance (0.1), and every rank returns the same number.
    assert 0.3 < spark_estimator.HorovodRunner(np=2).run(demo.train, epochs=4) <= 1


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "REQUIRED", {"no_such_module": "no-such-package", "sys": "python"})
    assert demo.main([]) == 1
    message = capsys.readouterr().err
    assert message == "The demo needs packages that are not installed: pip install no-such-package\n"


def test_what_spark_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(epochs: int) -> float:
        raise JavaNotFoundError("Spark needs Java 17 or later, and none was found.")

    monkeypatch.setattr(demo, "run", refuse)
    assert demo.main([]) == 1
    assert (
        remove_links(capsys.readouterr().err)
        == "The demo cannot run here: Spark needs Java 17 or later, and none was found.\n"
    )


def test_a_network_that_did_not_learn_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "run", lambda epochs: 0.5)
    assert demo.main([]) == 1
    assert "is a defect" in capsys.readouterr().err
    assert demo.main(["--epochs", "1"]) == 0
