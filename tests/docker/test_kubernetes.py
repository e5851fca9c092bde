"""`docker/kubernetes/client-mode.yaml` with Spark's own back-end: executors register, ranks train, a pod is killed."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import yaml

from benchmarks.namespaces import Network, UnavailableError
from tests.docker.kubernetes_api import KubernetesApi
from tests.docs.page_blocks import blocks_of
from tests.launch import clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "docker" / "kubernetes" / "client-mode.yaml"


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is needed")
    try:
        opened = Network.open(3)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def write_conf(folder: Path, api: KubernetesApi, driver: str) -> Path:
    """Write the manifests' settings into a folder for SPARK_CONF_DIR, with the addresses of this test."""
    manifests = list(yaml.safe_load_all(MANIFESTS.read_text()))
    data = next(manifest["data"] for manifest in manifests if manifest["kind"] == "ConfigMap")
    conf = folder / "conf"
    conf.mkdir()
    (conf / "pod.yaml").write_text(data["pod.yaml"])
    settings = data["spark-defaults.conf"].replace("/opt/spark/conf/pod.yaml", str(conf / "pod.yaml"))
    settings = settings.replace("driver.spark-estimator.svc", driver).replace("2g", "600m")
    settings = settings.replace("k8s://https://kubernetes.default.svc", api.address)
    more = ("spark.kubernetes.authenticate.submission.oauthToken none", "spark.ui.enabled false")
    (conf / "spark-defaults.conf").write_text(settings + "\n".join(more) + "\n")
    pod = next(manifest for manifest in manifests if manifest["kind"] == "Pod")
    del pod["spec"]["containers"][0]["args"]  # the test's driver program is in its place
    api.add("pods", pod)["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return conf


def read_logs(pods: Path) -> str:
    """Return the end of what each pod has logged."""
    return "".join(f"\n--- {log.parent.name}\n{log.read_text()[-3000:]}" for log in pods.glob("*/log"))


def test_executors_register_and_a_killed_pod_is_named(network: Network, tmp_path: Path) -> None:
    home, *nodes = network.hosts
    env = clusters.environment(SPARK_LOCAL_IP=None)
    pods = tmp_path / "pods"
    pods.mkdir()
    with KubernetesApi(home, nodes, ROOT / "docker" / "entrypoint.sh", env, pods) as api:
        conf = write_conf(tmp_path, api, home.address)
        variables = {"SPARK_CONF_DIR": str(conf), "SPARK_HOME": str(clusters.SPARK_HOME)}
        with clusters.driver("on_kubernetes.py", str(tmp_path), folder=tmp_path, host=home, env=variables) as driver:
            try:
                driver.wait_for("both ranks exchange", 300)
                executors = sorted(pod["metadata"]["name"] for pod in api.list_items("pods", "spark-role=executor"))
                assert len(executors) == 2
                api.kill(executors[1])
                result = driver.wait(200)
            except AssertionError as error:
                raise AssertionError(f"{error}{read_logs(pods)}") from None
    assert result["sum"] == 3.0 and sorted(result["hosts"]) == sorted(node.name for node in nodes)
    assert result["type"] == "WorkerFailedError" or result["type"] == "JobFailedError", result
    named = re.search(r"rank \d (?:on|\(host) (\w+)", str(result["text"]))
    assert named and named[1] in [node.name for node in nodes], result["text"]
    assert "was killed by Kubernetes for exceeding its container's memory limit" in str(result["text"]), result["text"]
    assert "raise spark.executor.memoryOverhead" in str(result["text"]), result["text"]


@pytest.mark.parametrize("kind", ["submit.sh", "the page's"])
def test_the_commands_run_the_driver_in_a_pod(network: Network, tmp_path: Path, kind: str) -> None:
    """`docker/kubernetes/submit.sh` and the page's block as they are: kubectl alone only prints its arguments."""
    home, *nodes = network.hosts
    env = clusters.environment(SPARK_LOCAL_IP=None)
    pods, programs, conf, app = (tmp_path / name for name in ("pods", "bin", "conf", "app"))
    for folder in (pods, programs, conf, app):
        folder.mkdir()
    (programs / "kubectl").write_text('#!/bin/sh\necho kubectl "$@"\n')
    (programs / "kubectl").chmod(0o755)
    (programs / "spark-submit").symlink_to(clusters.SPARK_HOME / "bin" / "spark-submit")
    (app / "train.py").write_text(blocks_of("docs/how-to/install/standalone.md", "python")[0].text)
    image = {"/opt/spark-estimator": str(ROOT / "docker"), "/opt/app": str(app)}
    with KubernetesApi(home, nodes, ROOT / "docker" / "entrypoint.sh", env, pods, image) as api:
        server = api.address.removeprefix("k8s://")
        (conf / "spark-defaults.conf").write_text(
            f"spark.kubernetes.driver.master {server}\nspark.ui.enabled false\n"
            "spark.kubernetes.authenticate.submission.oauthToken none\n"
        )
        variables = {"API_SERVER": server, "IMAGE": "example", "SPARK_CONF_DIR": str(conf)}
        variables |= {"SPARK_HOME": str(clusters.SPARK_HOME), "SPARK_LOCAL_IP": home.address}
        command = ["docker/kubernetes/submit.sh"]
        if kind == "the page's":
            blocks = blocks_of("docs/how-to/install/kubernetes.md", "sh")
            (text,) = [block.text for block in blocks if "spark-submit" in block.text]
            command = ["sh", "-ec", text.replace("https://apiserver:6443", server)]
        with home.entered():
            submission = subprocess.Popen(
                [*home.named, *command],
                env={**env, **variables, "PATH": f"{programs}:{env['PATH']}"},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        limit = threading.Timer(500, submission.kill)
        limit.start()
        try:
            output, _ = submission.communicate()
        finally:
            limit.cancel()
        phases = [pod["status"]["phase"] for pod in api.list_items("pods", "spark-role=driver")]
    assert (submission.returncode, phases) == (0, ["Succeeded"]), output[-2000:] + read_logs(pods)
    assert "kubectl apply --filename" in output
    (log,) = [path.read_text() for path in pods.glob("*-driver/log")]
    if kind == "the page's":
        assert "\nsum 2.0\n" in log, log[-3000:]
        return
    ran = re.findall(r"^rank (\d) ran in (\S+):", log, re.MULTILINE)
    assert [rank for rank, _ in ran] == ["0", "1"] and len({host for _, host in ran}) == 2, log[-3000:]
