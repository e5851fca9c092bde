"""`release/check_platform.py`, which people with an account run, on a local Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")

from tests.launch import clusters


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_check_succeeds_and_is_reported() -> None:
    answer = subprocess.run(
        [sys.executable, clusters.ROOT / "release" / "check_platform.py"],
        env=clusters.environment(PYSPARK_SUBMIT_ARGS="--master local[2] pyspark-shell"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=380,
        check=False,
    )
    report = json.loads(answer.stdout[answer.stdout.index("\n{\n") :])
    assert {name: check["ok"] for name, check in report["checks"].items()} == dict.fromkeys(
        ("preflight", "runner", "failure", "estimator", "script", "gpus"), True
    ), report
    assert report["connect"] is False and "rank 1" in report["checks"]["failure"]["text"]
    assert answer.returncode == 0
