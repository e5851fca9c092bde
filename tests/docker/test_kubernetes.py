"""`docker/kubernetes/client-mode.yaml` with Spark's own back-end: executors register, ranks train, a pod is killed."""

from __future__ import annotations

import shutil
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
