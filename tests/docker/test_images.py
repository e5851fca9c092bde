"""The container files use existing files, with the versions of constraints.txt, and agree with each other."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
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
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert sources == {rule[1:] for rule in rules if rule.startswith("!")}


def test_every_pip_install_is_held_to_the_constraints() -> None:
    installs = [step for line in instructions() for step in line.split(" && ") if "pip install" in step]
    assert len(installs) == 5
    for step in installs:
        if "--no-deps /opt/dist/*.whl" in step:
            continue
        assert "--constraint constraints.txt" in step or "grep -o '^torch==[^ ;]*' constraints.txt" in step, step


def test_a_changed_line_of_the_package_installs_no_other_package_again() -> None:
    """The stages of the packages copy nothing of the package itself; the images add its wheel alone to their layers."""
    stages = {stage.split("\n")[0].split(" AS ")[-1]: stage for stage in DOCKERFILE.split("\nFROM ")[1:]}
    for name in ("tools", "executor-packages", "driver-packages"):
        copied = re.findall(r"^COPY (.+) \S+$", stages[name], re.MULTILINE)
        assert set(" ".join(copied).split()) <= {"constraints.txt", "pyproject.toml", "docker/requirements.py"}, name
    assert "pip install --no-cache-dir --no-deps /opt/dist/*.whl" in stages["executor"]


def test_the_requirements_of_extras_are_those_of_extras_that_they_name() -> None:
    def list_requirements(extras: str) -> list[str]:
        program = [sys.executable, DOCKER / "requirements.py", extras]
        return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    listed = list_requirements("connect,cluster")
    assert len(listed) == len(set(listed))
    assert {"cloudpickle>=2.2", "torch>=2.6", "pyarrow>=14.0.1", "jupyterlab>=4", "scikit-learn>=1.3"} <= set(listed)
    assert not [requirement for requirement in listed if requirement.startswith("spark-estimator")]


def test_no_file_names_a_version_that_constraints_txt_does_not() -> None:
    """Versions of packages are in constraints.txt alone, so that they cannot differ from it."""
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = re.compile(rf"\b({'|'.join(map(re.escape, names))})\s*[=<>~]=\s*\d", re.IGNORECASE)
    for path in sorted(DOCKER.rglob("*")):
        if path.is_file() and path.suffix not in (".pyc", ".md"):
            assert not pinned.search(path.read_text()), path


def test_the_path_of_spark_is_that_of_the_python_of_the_base_image() -> None:
    """Debian 12 has Python 3.11, and the path of the packages contains its version."""
    assert re.search(r"^ARG BASE=debian:12-slim$", DOCKERFILE, re.MULTILINE)
    assert "SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark" in DOCKERFILE


def test_no_image_runs_as_root() -> None:
    stages = {stage.split("\n")[0]: stage for stage in DOCKERFILE.split("\nFROM ")}
    executor, driver = stages["system AS executor"], stages["executor AS driver"]
    assert executor.rindex("USER 185") < executor.rindex("ENTRYPOINT") and "USER" not in driver


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
        assert service["shm_size"] == "1gb", "64 MB end DataLoader's workers"
        assert service["pull_policy"] == "never"
        assert set(service["secrets"]) <= set(COMPOSE["secrets"])
        assert "no-new-privileges:true" in service["security_opt"] and service["cap_drop"] == ["ALL"]


def test_compose_builds_each_image_once() -> None:
    built = {name: service["build"] for name, service in COMPOSE["services"].items() if "build" in service}
    assert {name: build["target"] for name, build in built.items()} == {"master": "executor", "jupyter": "driver"}
    for build in built.values():
        assert f" AS {build['target']}\n" in DOCKERFILE
        for name in build["args"]:
            assert re.search(rf"^ARG {name}=", DOCKERFILE, re.MULTILINE), name


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


def test_health_checks_ask_the_entry_point_whether_a_port_listens() -> None:
    for service in COMPOSE["services"].values():
        program, *check = service["healthcheck"]["test"][1:]
        assert program == "/opt/entrypoint.sh" and check[0] == "listens" and " " not in "".join(check)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [DOCKER / "entrypoint.sh", "listens", "127.0.0.1", str(server.getsockname()[1])]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


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
    settings = dict(line.split(" ", 1) for line in conf.splitlines() if not line.startswith("#"))
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert settings["spark.driver.port"] == ports["driver"]
    assert settings["spark.driver.blockManager.port"] == ports["block-manager"]
    assert settings["spark.driver.host"] == "driver.spark-estimator.svc"
    assert settings["spark.kubernetes.driver.pod.name"] == pod["metadata"]["name"]
    assert pod["spec"]["serviceAccountName"] in {name for kind, name in by_kind if kind == "ServiceAccount"}
    binding = by_kind["RoleBinding", "spark-driver"]
    assert ("Role", binding["roleRef"]["name"]) in by_kind


def test_pods_fulfil_the_restricted_standard_and_have_memory_to_share() -> None:
    conf = next(manifest for manifest in manifests() if manifest["kind"] == "ConfigMap")
    template = yaml.safe_load((DOCKER / "kubernetes" / "pod.yaml").read_text())
    assert yaml.safe_load(conf["data"]["pod.yaml"]) == template
    pods = [manifest for manifest in manifests() if manifest["kind"] == "Pod"]
    assert len(pods) == 2
    for pod in pods:
        security = {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["spec"]["securityContext"] == security
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
        volume = next(volume for volume in pod["spec"]["volumes"] if volume["name"] == "shared-memory")
        assert volume["emptyDir"]["medium"] == "Memory"


def test_executors_in_client_mode_are_told_the_driver_s_name() -> None:
    """Spark 4.3 tells them the bind address, 0.0.0.0, unless this is off."""
    conf = next(manifest for manifest in manifests() if manifest["kind"] == "ConfigMap")["data"]["spark-defaults.conf"]
    assert "spark.kubernetes.executor.useDriverPodIP false" in conf.splitlines()
