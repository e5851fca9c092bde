"""`make cluster` with the images that the Dockerfile builds: Debian from its archive, the packages from PyPI.

It downloads 1.5 GB and takes a quarter of an hour, so it runs where SPARK_ESTIMATOR_TEST_IMAGE_BUILD is set only, as by
`make test-containers`. The base image is made by debootstrap, and PyTorch's wheel is served from this machine: neither
the registry of images nor PyTorch's index is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docker.engine import Engine, start_engine
from tests.docker.test_containers import ROOT, Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BASE = "debian:12-slim"
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not os.environ.get("SPARK_ESTIMATOR_TEST_IMAGE_BUILD"):
        pytest.skip("SPARK_ESTIMATOR_TEST_IMAGE_BUILD is not set: a build downloads 1.5 GB")
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap, of Debian's package of that name, is not installed")
    return tmp_path_factory.mktemp("engine")


def make_base(engine: Engine, folder: Path) -> None:
    """Import a minimal Debian under the name of the Dockerfile's base, with this machine's trusted certificates."""
    root = folder / "base"
    command = ["debootstrap", "--variant=minbase", "bookworm", str(root)]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=900, check=True)
    if _BUNDLE.exists():
        certificates = root / "usr" / "local" / "share" / "ca-certificates"
        certificates.mkdir(parents=True, exist_ok=True)
        shutil.copy(_BUNDLE, certificates / "machine.crt")
        (root / "etc" / "pip.conf").write_text(f"[global]\ncert = {_BUNDLE}\n")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    archive = folder / "base.tar"
    subprocess.run(["tar", "--create", "--file", archive, "--directory", root, "."], timeout=300, check=True)
    engine.docker("import", str(archive), BASE, seconds=300)


@contextlib.contextmanager
def serve_torch(folder: Path) -> Iterator[str]:
    """Serve this environment's version of PyTorch as an index of packages; return its address."""
    import torch

    (folder / "torch").mkdir(parents=True)
    version = torch.__version__.partition("+")[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder / "torch"]
    subprocess.run([*command, f"torch=={version}"], timeout=900, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@pytest.fixture(scope="module")
def checkout(folder: Path) -> Path:
    """A clone of what is committed here, whose images are built."""
    clone = folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", clone], timeout=120, check=True)
    services = {name: {"build": {"network": "host"}} for name in ("master", "jupyter")}
    (clone / "docker" / "compose.override.yaml").write_text(json.dumps({"services": services}))
    return clone


@pytest.fixture(scope="module")
def engine(folder: Path, checkout: Path) -> Iterator[Engine]:
    """An engine that has both images; a second build finds their layers."""
    with start_engine(folder, builds=True) as builder, serve_torch(folder / "index") as index:
        make_base(builder, folder)
        builder.env.update(TORCH_INDEX=index, CLUSTER_SECRETS=str(folder))
        files = [f"--file={checkout}/docker/{name}" for name in ("compose.yaml", "compose.override.yaml")]
        builder.docker("compose", *files, "build", seconds=3000)
    with start_engine(folder) as started:
        started.env["TORCH_INDEX"] = index
        yield started


def test_the_images_of_the_dockerfile_run_a_cluster(engine: Engine, checkout: Path) -> None:
    cluster = Cluster(engine, checkout)
    try:
        status, output = cluster.call("up", "--variant", "containers")
        assert status == 0, output + cluster.read_logs()
        status, output = cluster.call("demo")
        assert status == 0, output
        hosts = re.findall(r"^rank \d ran in (worker-\d):", output, re.MULTILINE)
        assert sorted(hosts) == ["worker-1", "worker-2"]
        assert "of 4000 rows are classified correctly" in output
    finally:
        status, output = cluster.call("down")
    assert status == 0, output
