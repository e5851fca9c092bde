"""`make cluster` in real containers: start, demo, a worker that is killed, cut off, or out of memory, stop.

The images have the packages of this environment by mounts, so that nothing is downloaded. `build_images.sh` tries what
the Dockerfile installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docker.engine import Engine, start_engine
from tests.docs.page_blocks import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
IMAGE = """\
FROM scratch AS executor
COPY root /
COPY --chown=185:0 home /home/spark
ENV PATH={python}:/usr/bin:/bin HOME=/home/spark SPARK_HOME={spark} PYSPARK_PYTHON={python}/python \\
    PYTHONPATH={root} PYTHONUNBUFFERED=1 JAVA_HOME={java} PYTHONDONTWRITEBYTECODE=1
WORKDIR /home/spark
USER 185
ENTRYPOINT ["/bin/bash", "/opt/entrypoint.sh"]
FROM executor AS driver
"""


class Cluster:
    """A checkout's `docker/cluster.py`, whose containers an engine of the test starts."""

    def __init__(self, engine: Engine, checkout: Path) -> None:
        self._engine, self._checkout = engine, checkout
        self._folder = checkout / "build" / "cluster"

    def call(self, *arguments: str) -> tuple[int, str]:
        """Run a command of cluster.py; return its exit status and its output."""
        return self.run(sys.executable, self._checkout / "docker" / "cluster.py", *arguments, "--folder", self._folder)

    def run(self, *command: str | Path, seconds: float = 600) -> tuple[int, str]:
        """Run a command in the checkout; return its exit status and its output."""
        answer = subprocess.run(
            command,
            env=self._engine.env,
            cwd=self._checkout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        return answer.returncode, answer.stdout

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self._engine.docker("ps", "--quiet", f"--filter=label=com.docker.compose.service={service}").strip()

    def read_logs(self) -> str:
        """Return the last lines of each container."""
        names = self._engine.docker("ps", "--all", "--format", "{{.Names}}").split()
        return "".join(f"\n--- {name}\n{self._engine.docker('logs', '--tail', '30', name)}" for name in names)

    def run_program(self, *arguments: str, on_steps: Callable[[], object] | None = None, seconds: float = 400) -> str:
        """Run programs/steps.py in Jupyter's container, as its users do, and return its output.

        Args:
            on_steps: called once both ranks exchange numbers.
        """
        program = ["/opt/entrypoint.sh", "python", f"{ROOT}/tests/docker/programs/steps.py", *arguments]
        process = subprocess.Popen(
            ["docker", "exec", self.container("jupyter"), *program],
            env=self._engine.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        lines = []
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                if on_steps is not None and len(re.findall(r"rank \d steps", "".join(lines))) == 2:
                    on_steps()
                    on_steps = None
        finally:
            limit.cancel()
        late = process.wait(30) == -signal.SIGKILL
        return "".join(lines) + (f"== no end within {seconds:g} s{self.read_logs()}" if late else "")


def prepare(folder: Path) -> Path:
    """Make a checkout's docker/ whose images are filled by mounts; return it."""
    import pyspark

    checkout = folder / "checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "Makefile", checkout)
    shutil.copytree(ROOT / "docker", checkout / "docker", ignore=shutil.ignore_patterns("__pycache__"))
    image = folder / "image"
    etc, opt, temporary = (image / "root" / name for name in ("etc", "opt", "tmp"))
    etc.mkdir(parents=True)
    (etc / "passwd").write_text("root:x:0:0::/root:/bin/sh\nspark:x:185:0::/home/spark:/bin/sh\n")
    (etc / "group").write_text("root:x:0:\n")
    (etc / "nsswitch.conf").write_text("passwd: files\nhosts: files dns\n")
    shutil.copytree(ROOT / "notebooks", image / "home" / "notebooks")
    (opt / "spark-estimator").mkdir(parents=True)
    shutil.copy(ROOT / "docker" / "entrypoint.sh", opt)
    shutil.copy(ROOT / "docker" / "demo.py", opt / "spark-estimator")
    # Of the image, as Debian's: a tmpfs loses its mode when Docker 20.10 starts a container again.
    temporary.mkdir()
    temporary.chmod(0o1777)
    python = Path(sys.executable).parent
    java = os.environ.get("JAVA_HOME") or str(Path(os.path.realpath(str(shutil.which("java")))).parents[1])
    spark = Path(pyspark.__file__).parent
    (image / "Dockerfile").write_text(IMAGE.format(python=python, spark=spark, root=ROOT, java=java))
    parts = [ROOT, python.parent, python.parent.resolve(), Path(sys.base_prefix), Path(java), spark.resolve().parent]
    parts += [Path(name) for name in ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/java-17-openjdk")]
    mounts = sorted({f"{path.resolve()}:{path}:ro" for path in parts if path.exists()})
    names = ("master", "worker-1", "worker-2", "connect", "jupyter")
    services: dict[str, dict[str, object]] = {name: {"volumes": mounts} for name in names}
    for name in ("master", "jupyter"):
        services[name]["build"] = {"context": str(image), "dockerfile": "Dockerfile"}
    for name in ("worker-1", "worker-2"):
        services[name]["mem_limit"] = services[name]["memswap_limit"] = "5g"
    # Docker 20.10 hangs when a container starts again that was killed during a health check: this one takes no time.
    services["worker-2"]["healthcheck"] = {"test": ["CMD", "/bin/true"], "interval": "10s"}
    (checkout / "docker" / "compose.override.yaml").write_text(json.dumps({"services": services}))
    return checkout


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with start_engine(tmp_path_factory.mktemp("engine")) as started:
        yield started


def test_the_cluster_starts_names_its_faults_and_stops(engine: Engine, tmp_path: Path) -> None:
    """By the commands of the page."""
    cluster = Cluster(engine, prepare(tmp_path))
    lines = blocks_of("docs/how-to/install/docker.md", "sh")[0].text.splitlines()
    start, demo, stop = ([*line.partition("#")[0].split(), f"PYTHON={sys.executable}"] for line in lines)
    try:
        status, output = cluster.run(*start)
        assert status == 0, output + cluster.read_logs()
        assert "Starting the cluster as containers (docker answers); the engine keeps the logs" in output
        assert "is running already" in cluster.call("up")[1]

        status, output = cluster.run(*demo)
        assert status == 0, output
        ran = re.findall(r"^rank (\d) ran in (worker-\d):", output, re.MULTILINE)
        assert [rank for rank, _ in ran] == ["0", "1"] and {host for _, host in ran} == {"worker-1", "worker-2"}
        assert "of 4000 rows are classified correctly" in output

        returning = cluster.container("worker-2")

        def lose_and_return() -> None:
            engine.docker("kill", returning)
            threading.Timer(15, engine.docker, ["start", returning]).start()

        output = cluster.run_program("elastic", on_steps=lose_and_return)
        assert "result [2, 1, 2]" in output, output

        output = cluster.run_program("memory")
        assert re.search(r"== failed: .*rank 1 (on|\(host) worker-\d", output), output
        assert re.search(r"signal 9|memory", output[output.index("== failed") :]), output

        victim = cluster.container("worker-2")
        (network,) = json.loads(engine.docker("inspect", victim, "--format", "{{json .NetworkSettings.Networks}}"))
        output = cluster.run_program(
            "cut", on_steps=lambda: engine.docker("network", "disconnect", "--force", network, victim)
        )
        assert re.search(r"== failed: .*rank \d (on|\(host) worker-2.*(cut off|out of contact|frozen)", output), output

        engine.docker("kill", victim)
        status, output = cluster.call("demo")
        assert status == 1 and "A part of the cluster has ended: worker-2 (env CLUSTER_SECRETS=" in output
        logs = re.search(r"worker-2 \((env .*? logs worker-2)\)", output)
        assert logs
        shown = subprocess.run(logs[1], shell=True, env=engine.env, capture_output=True, text=True, check=False)
        assert "Worker" in shown.stdout, shown
    finally:
        status, output = cluster.run(*stop)
    assert status == 0, output
    assert engine.docker("ps", "--all", "--quiet") == ""
