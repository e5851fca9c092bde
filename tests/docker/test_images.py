"""The container files use existing files, with the versions of constraints.txt, and agree with each other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())


def instructions() -> list[str]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_what_is_copied_exists_and_is_sent_to_the_engine() -> None:
    copied = [line.split()[1:-1] for line in instructions() if line.startswith("COPY ") and "--from=" not in line]
    sources = {source for line in copied for source in line if not source.startswith("--")}
    assert sources and not [source for source in sources if not (ROOT / source).exists()]
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert sources == {rule[1:] for rule in rules if rule.startswith("!")}


def test_every_pip_install_is_held_to_the_constraints() -> None:
    installs = [step for line in instructions() for step in line.split(" && ") if "pip install" in step]
    assert len(installs) == 4
    for step in installs:
        assert "--constraint constraints.txt" in step or "grep -o '^torch==[^ ;]*' constraints.txt" in step, step


def test_no_file_names_a_version_that_constraints_txt_does_not() -> None:
    """Versions of packages are in constraints.txt alone, so that they cannot differ from it."""
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = re.compile(rf"\b({'|'.join(map(re.escape, names))})\s*[=<>~]=\s*\d", re.IGNORECASE)
    for path in sorted(DOCKER.rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".md"):
            assert not pinned.search(path.read_text()), path


def test_the_path_of_spark_is_that_of_the_python_of_the_base_image() -> None:
    """Debian 12 has Python 3.11, and the path of the packages contains its version."""
    assert re.search(r"^ARG BASE=debian:12\.\d+-slim$", DOCKERFILE, re.MULTILINE)
    assert "SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark" in DOCKERFILE


def test_no_image_runs_as_root() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    runtime = next(stage for stage in stages if stage.startswith("system AS runtime"))
    assert runtime.rindex("USER 185") < runtime.rindex("ENTRYPOINT")
    for name in ("executor", "driver"):
        final = next(stage for stage in stages if stage.startswith(f"runtime AS {name}"))
        assert "USER" not in final


def test_extras_exist() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    extras = re.search(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert extras
    for extra in (*extras[1].split(","), "cluster", "java"):
        assert re.search(rf"^{extra} = \[", pyproject, re.MULTILINE), extra


def test_compose_starts_roles_and_stages_that_exist() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"master", "worker-1", "worker-2", "connect", "jupyter"}
    roles = re.findall(r"^  (\w+)\)$", (DOCKER / "entrypoint.sh").read_text(), re.MULTILINE)
    for service in services.values():
        assert service["command"][0] in roles
        assert f" AS {service['build']['target']}\n" in DOCKERFILE
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        assert "no-new-privileges:true" in service["security_opt"] and service["cap_drop"] == ["ALL"]


def test_compose_publishes_the_loopback_address_only() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:${") for port in ports), ports


def test_both_variants_set_the_same_settings() -> None:
    """The cluster of containers and that of processes differ in addresses and folders alone."""
    source = (DOCKER / "cluster_processes.py").read_text()
    processes = dict(re.findall(r'^        "(spark\.\S+)": (.+?),(?:  #.*)?$', source, re.MULTILINE))
    entrypoint = (DOCKER / "entrypoint.sh").read_text()
    containers = dict(re.findall(r"^(spark\.\S+) (.+)$", entrypoint, re.MULTILINE))
    assert processes.keys() == containers.keys()
    for name in ("spark.authenticate", "spark.ui.killEnabled", "spark.master.rest.enabled", "spark.executor.cores"):
        assert processes[name].strip('"') == containers[name], name


@pytest.mark.parametrize("script", sorted(DOCKER.rglob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_valid(script: Path) -> None:
    shell = "bash" if script.read_text().startswith("#!/bin/bash") else "sh"
    answer = subprocess.run([shell, "-n", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert script.stat().st_mode & 0o111, "it is not executable"


def test_the_entry_point_starts_other_programs_and_asks_for_a_role() -> None:
    entrypoint = DOCKER / "entrypoint.sh"
    answer = subprocess.run([entrypoint, "echo", "a b", "c"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "a b c\n")
    answer = subprocess.run([entrypoint], capture_output=True, text=True, check=False)
    assert answer.returncode == 2 and "name a role" in answer.stderr


def test_the_entry_point_gives_a_kubernetes_executor_what_spark_has_described(tmp_path: Path) -> None:
    """The variables are those that Spark's driver sets on an executor's pod; `java` shows its arguments."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "SPARK_HOME": "/spark",
        "SPARK_CONF_DIR": "/conf",
        "SPARK_JAVA_OPT_10": "-Dlast=yes",
        "SPARK_JAVA_OPT_2": "-Dspark.first=a b",
        "SPARK_EXECUTOR_MEMORY": "1024m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-application-1",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
        "SPARK_EXECUTOR_POD_NAME": "pod-3",
        "SPARK_RESOURCE_PROFILE_ID": "0",
    }
    answer = subprocess.run(
        [DOCKER / "entrypoint.sh", "executor"], env=env, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    arguments = answer.stdout.splitlines()
    assert arguments[:4] == ["-Dspark.first=a b", "-Dlast=yes", "-Xms1024m", "-Xmx1024m"]
    assert arguments[arguments.index("-cp") + 1].split(":")[0] == "/conf"
    assert "/spark/jars/*" in arguments[arguments.index("-cp") + 1].split(":")
    options = dict(zip(arguments[7::2], arguments[8::2], strict=True))
    assert arguments[6] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert options["--driver-url"] == env["SPARK_DRIVER_URL"] and options["--hostname"] == "10.0.0.3"
    assert options["--podName"] == "pod-3" and options["--resourceProfileId"] == "0"


def manifests() -> list[dict]:
    files = sorted((DOCKER / "kubernetes").glob("*.yaml"))
    return [manifest for file in files for manifest in yaml.safe_load_all(file.read_text())]


def test_the_manifests_name_one_another() -> None:
    by_kind = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests()}
    service, pod = by_kind["Service", "driver"], by_kind["Pod", "driver"]
    assert service["spec"]["clusterIP"] == "None", "the executors need the pod's own address"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    conf = by_kind["ConfigMap", "spark-defaults"]["data"]["spark-defaults.conf"]
    settings = dict(line.split(" ", 1) for line in conf.splitlines())
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert settings["spark.driver.port"] == ports["driver"]
    assert settings["spark.driver.blockManager.port"] == ports["block-manager"]
    assert settings["spark.driver.host"] == "driver.spark-estimator.svc"
    assert settings["spark.kubernetes.driver.pod.name"] == pod["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] in {name for kind, name in by_kind if kind == "ServiceAccount"}
    binding = by_kind["RoleBinding", "spark-driver"]
    assert ("Role", binding["roleRef"]["name"]) in by_kind


def test_every_pod_runs_as_another_user_than_root() -> None:
    pods = [manifest for manifest in manifests() if manifest["kind"] == "Pod"]
    assert len(pods) == 2
    for pod in pods:
        assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "runAsUser": 185}
