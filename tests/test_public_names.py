"""Every public name stays importable: ours and Horovod's, as `public_names.txt` lists them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A process of its own: the old names must not stay in the test run's.
PROGRAM = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
from spark_estimator import compat
compat.install(force=True)
missing = []
for line in open(sys.argv[1]):
    module, name = line.split()
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        missing.append(f"{module}.{name}: {error}")
print("\\n".join(missing))
"""


@pytest.mark.timeout(180)
def test_every_public_name_is_importable() -> None:
    for needed in ("torch", "tensorflow", "keras", "lightning", "pyspark"):
        pytest.importorskip(needed)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "tests" / "public_names.txt")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]
