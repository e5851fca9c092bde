"""`docker/kubernetes/client-mode.yaml` with Spark's own back-end: executors register, ranks train, a pod is killed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import yaml

from benchmarks.namespaces import Network, UnavailableError
from tests.docker.kubernetes_api import KubernetesApi
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
                logs = "".join(f"\n--- {log.parent.name}\n{log.read_text()[-3000:]}" for log in pods.glob("*/log"))
                raise AssertionError(f"{error}{logs}") from None
    assert result["sum"] == 3.0 and sorted(result["hosts"]) == sorted(node.name for node in nodes)
    assert result["type"] == "WorkerFailedError" or result["type"] == "JobFailedError", result
    first = str(result["text"]).split("\n")[0]
    assert any(f"host {node.name}" in first for node in nodes), first
    assert "137" in str(result["text"]) or "OOM" in str(result["text"]), result["text"]


def test_submit_sh_runs_the_driver_in_a_pod(network: Network, tmp_path: Path) -> None:
    """`docker/kubernetes/submit.sh` as it is: kubectl alone is a program that prints its arguments."""
    home, *nodes = network.hosts
    env = clusters.environment(SPARK_LOCAL_IP=None)
    pods, programs, conf = tmp_path / "pods", tmp_path / "bin", tmp_path / "conf"
    for folder in (pods, programs, conf):
        folder.mkdir()
    (programs / "kubectl").write_text('#!/bin/sh\necho kubectl "$@"\n')
    (programs / "kubectl").chmod(0o755)
    (programs / "spark-submit").symlink_to(clusters.SPARK_HOME / "bin" / "spark-submit")
    image = {"/opt/spark-estimator": str(ROOT / "docker")}
    with KubernetesApi(home, nodes, ROOT / "docker" / "entrypoint.sh", env, pods, image) as api:
        server = api.address.removeprefix("k8s://")
        (conf / "spark-defaults.conf").write_text(
            f"spark.kubernetes.driver.master {server}\nspark.ui.enabled false\n"
            "spark.kubernetes.authenticate.submission.oauthToken none\n"
        )
        variables = {"API_SERVER": server, "IMAGE": "example", "SPARK_CONF_DIR": str(conf)}
        variables |= {"SPARK_HOME": str(clusters.SPARK_HOME), "SPARK_LOCAL_IP": home.address}
        with home.entered():
            submission = subprocess.Popen(
                [*home.named, str(ROOT / "docker" / "kubernetes" / "submit.sh")],
                env={**env, **variables, "PATH": f"{programs}:{env['PATH']}"},
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            output, _ = submission.communicate(timeout=400)
        finally:
            submission.kill()
        (driver,) = api.list_items("pods", "spark-role=driver")
    log = (pods / driver["metadata"]["name"] / "log").read_text()
    assert submission.returncode == 0 and driver["status"]["phase"] == "Succeeded", output[-2000:] + log[-3000:]
    assert "kubectl apply --filename" in output
    ran = re.findall(r"^rank (\d) ran in (\S+):", log, re.MULTILINE)
    assert [rank for rank, _ in ran] == ["0", "1"] and len({host for _, host in ran}) == 2, log[-3000:]
