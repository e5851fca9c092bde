"""Small functions of ``horovod.runner`` that programs import."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from spark_estimator import compat
compat.install(force=True)
from horovod.runner.common.util.codec import dumps_base64, loads_base64
from horovod.runner.common.util.secret import make_secret_key
from horovod.runner.js_run import is_jsrun_installed, js_run
from horovod.runner.mpi_run import is_open_mpi, mpi_available, mpi_run
from horovod.spark.common.constants import BYTES_PER_GIB, TOTAL_BUFFER_MEMORY_CAP_GIB

assert loads_base64(dumps_base64({"x": (1, 2)})) == {"x": (1, 2)}
assert isinstance(dumps_base64(1), str) and isinstance(dumps_base64(1, to_ascii=False), bytes)
assert len(make_secret_key()) == 32 and make_secret_key() != make_secret_key()
assert not (mpi_available() or is_open_mpi({}) or is_jsrun_installed())
assert (BYTES_PER_GIB, TOTAL_BUFFER_MEMORY_CAP_GIB) == (1 << 30, 4)
for name in (mpi_run, js_run):
    try:
        name()
    except NotImplementedError as error:
        assert "horovodrun" in str(error)
    else:
        raise AssertionError(name)
"""


def test_answers_under_the_old_names() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
