"""The wheel for every system drives a Spark Connect server, where Windows or macOS is imitated.

The program is ``tests/launch/drivers/foreign_client.py``; ``tests/support/foreign_system.py`` says what it sees.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql.connect.session")

from tests.launch import clusters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel without the engine is installed."""
    folder = tmp_path_factory.mktemp("client")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    command += ["--config-settings=wheel.cmake=false", f"--config-settings=build-dir={folder}/build"]
    subprocess.run([*command, "--wheel-dir", folder, clusters.ROOT], check=True, timeout=200, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.timeout(500)
@pytest.mark.parametrize("system", ["windows", "mac"])
def test_a_session_is_driven_without_the_engine(system: str, site: Path, tmp_path: Path) -> None:
    path = os.pathsep.join(map(str, (site, clusters.ROOT)))
    with (
        clusters.connect_server(tmp_path, "local[2]", env={"HOROVOD_START_TIMEOUT": "120"}) as address,
        clusters.driver(
            "foreign_client.py", system, address, str(tmp_path), folder=tmp_path, env={"PYTHONPATH": path}
        ) as driver,
    ):
        results = driver.wait(400)
        lines = driver.output()
    assert results["package"] == f"{site}/spark_estimator"
    assert results["runner"] == [6.0, 6.0]
    assert "rank 1 (host " in str(results["killed"]) and "was killed by signal 9 (SIGKILL)" in str(results["killed"])
    for saved in (results["default_path"], results["file_url"]):
        assert isinstance(saved, dict), saved
        assert math.isclose(saved["predicted"], results["by_hand"], rel_tol=1e-5)  # type: ignore[arg-type]
        assert saved["different"] == 0
    cluster, doctor = "\n".join(results["cluster"]), "\n".join(results["doctor"])  # type: ignore[arg-type]
    assert "missing" not in f"{cluster}{doctor}".lower(), f"{cluster}\n{doctor}"
    assert "wheel py3-none-any" in doctor and "note  engine" in doctor and "driver           reached at" in cluster
    for refused in ("local", "horovodrun"):
        assert "No rank can run on " in str(results[refused]) and "py3-none-any" in str(results[refused])
    if system == "windows":
        assert "of this Windows machine: the store needs a URL" in str(results["store"])
        assert results["posix"] == []
    else:
        assert len(results["store"]) == 3, results["store"]  # type: ignore[arg-type]
    assert "Traceback" not in lines.partition("RESULT")[2]
