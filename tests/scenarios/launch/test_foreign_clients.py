"""The wheel for every system drives a Spark Connect server, where Windows or macOS is imitated.

What runs is `release/check_client.py`; ``tests/support/foreign_system.py`` has what it sees.
"""

from __future__ import annotations

import json
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
    env = {"PYTHONPATH": os.pathsep.join(map(str, (site, clusters.ROOT))), "HOROVOD_START_TIMEOUT": "120"}
    # Without the engine a client encrypts nothing, so an encrypted job has no driver channel.
    settings = {"spark.spark_estimator.encryption": "require" if system == "windows" else "off"}
    with (
        clusters.connect_server(tmp_path, "local[2]", settings) as address,
        clusters.driver("foreign_client.py", system, address, folder=tmp_path, env=env) as driver,
    ):
        driver.process.wait(400 * clusters.SLOWDOWN)
        output = driver.output()
    report = json.loads(output[output.rindex("\n{\n") :])
    assert report["from"] == f"{site}/spark_estimator"
    assert not {name: check for name, check in report["checks"].items() if not check["ok"]}, output
    assert len(report["checks"]) == 11
    assert report["checks"]["store"]["text"].startswith("refused" if system == "windows" else "not checked")
    assert driver.process.returncode == 0
