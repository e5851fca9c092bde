"""What a worker is started with, on this host, under horovodrun and in Spark; and that its user's word prevails."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_estimator.collectives.cores import count_available_cores
from spark_estimator.env import WORKER_CHOICES_VARIABLE, Decision, Settings
from spark_estimator.launch.job import environment as module
from spark_estimator.launch.job.environment import (
    choose_variables,
    decide_host_threads,
    exported_environment,
    make_worker_environment,
    remove_choices,
)
from spark_estimator.launch.job.options import JobOptions
from spark_estimator.launch.local import run_local
from tests.launch import clusters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")

SHARE = Decision(2, "from spark.task.cpus")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
MALLOC = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test run's own environment has no settings for workers."""
    for name in (*THREADS, *MALLOC, "MALLOC_TOP_PAD_", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith("SPARK_ESTIMATOR_WORKER_"):
            monkeypatch.delenv(name)


def variables_of(environ: dict[str, str], **more: str) -> dict[str, str]:
    """What a worker gets beside `environ`, without the record of it."""
    variables = make_worker_environment(environ, more, SHARE)
    del variables[WORKER_CHOICES_VARIABLE]
    return variables


def threads(environ: dict[str, str], **more: str) -> dict[str, str]:
    return {name: value for name, value in variables_of(environ, **more).items() if name in THREADS}


def test_threads_are_the_share_unless_the_user_has_a_say() -> None:
    assert threads({}) == dict.fromkeys(THREADS, "2")
    assert threads({"MKL_NUM_THREADS": "7"}) == {name: "2" for name in THREADS if name != "MKL_NUM_THREADS"}
    # The others take it from OMP_NUM_THREADS; TensorFlow does not.
    assert threads({"OMP_NUM_THREADS": "3"}) == {"TF_NUM_INTRAOP_THREADS": "3"}
    assert threads({"OMP_NUM_THREADS": "3,2"}) == {}
    assert threads({}, SPARK_ESTIMATOR_WORKER_THREADS="5") == dict.fromkeys(THREADS, "5")
    assert threads({"SPARK_ESTIMATOR_WORKER_THREADS": "0"}) == {}
    with pytest.raises(ValueError, match="SPARK_ESTIMATOR_WORKER_THREADS='many'"):
        variables_of({"SPARK_ESTIMATOR_WORKER_THREADS": "many"})


def test_what_spark_has_set_is_no_word_of_the_user_s() -> None:
    by_value = {
        threads: make_worker_environment({"OMP_NUM_THREADS": threads}, {}, SHARE, spark=True).get("OMP_NUM_THREADS")
        for threads in ("2", "6")
    }
    assert by_value == {"2": "2", "6": None}  # 6 cannot be Spark's, whose tasks have 2 cpus: it stays


def test_a_share_is_never_less_than_one_core() -> None:
    assert decide_host_threads(10_000).value == 1
    assert "for 10000 ranks on this host" in decide_host_threads(10_000).why


@pytest.mark.parametrize(
    "environ",
    [
        {"SPARK_ESTIMATOR_WORKER_MALLOC": "system"},
        {"MALLOC_TOP_PAD_": "0"},
        {"MALLOC_MMAP_THRESHOLD_": "65536"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
        {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
    ],
)
def test_malloc_is_left_alone_where_the_user_has_a_say(environ: dict[str, str]) -> None:
    assert not variables_of(environ).keys() & MALLOC
    assert all(choice.why for choice in choose_variables(environ, SHARE))


def test_a_glibc_that_refuses_a_high_threshold_maps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_read_glibc_version", lambda: (2, 31))
    assert variables_of({})["MALLOC_MMAP_MAX_"] == "0"
    monkeypatch.setattr(module, "_read_glibc_version", lambda: None)
    assert not variables_of({}).keys() & MALLOC


def test_what_a_launcher_chose_is_no_word_of_the_user_s_for_a_job_inside_the_job() -> None:
    inside = {"OMP_NUM_THREADS": "9", "PATH": "/bin"}
    inside |= make_worker_environment(inside, {}, SHARE)
    assert inside["TF_NUM_INTRAOP_THREADS"] == "9"
    assert remove_choices(inside) == {"OMP_NUM_THREADS": "9", "PATH": "/bin"}
    inside["TF_NUM_INTRAOP_THREADS"] = "4"  # set later, by a program in the job
    assert remove_choices(inside)["TF_NUM_INTRAOP_THREADS"] == "4"
    assert remove_choices({WORKER_CHOICES_VARIABLE: "[[broken", "A": "1"}) == {"A": "1"}


def look() -> dict[str, Any]:
    """What a worker has found."""
    import numpy
    import torch

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        numpy.ones(8 << 20)  # 64 MB: more than glibc keeps by default
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    started_with = dict(
        entry.split("=", 1) for entry in Path("/proc/self/environ").read_text().split("\0") if "=" in entry
    )
    child = subprocess.run([sys.executable, "-c", "import os; print(*os.environ)"], capture_output=True, text=True)
    return {
        "threads": torch.get_num_threads(),
        "environ": {name: os.environ.get(name) for name in THREADS},
        "started with": sorted(MALLOC & started_with.keys()),
        "has still": sorted(MALLOC & os.environ.keys()),
        "child has": sorted(MALLOC & set(child.stdout.split())),
        "faults": faults(),
    }


def test_workers_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    ranks = run_local(look, 2, JobOptions(all_results=True))
    share = str(decide_host_threads(2).value)
    for rank in ranks:
        assert rank["environ"] == dict.fromkeys(THREADS, share) and rank["threads"] == int(share)
        assert rank["started with"] and not rank["has still"] and not rank["child has"]
        assert rank["faults"] < 200  # of 16,384 pages

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of more cores, here as in CI
    (rank,) = run_local(look, 1, JobOptions(environment={"SPARK_ESTIMATOR_WORKER_MALLOC": "system"}))
    assert rank["environ"] == {**dict.fromkeys(THREADS), "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    assert rank["threads"] == 1 and not rank["started with"]


def test_commands_keep_it_and_tell_of_it(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_estimator.launch.cli import main as cli

    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    assert cli.run_command([sys.executable, "-m", "spark_estimator", "env"], 2, {}) == 0
    lines = [line.split(">:", 1)[1] for line in capfd.readouterr().out.splitlines() if line.startswith("[1]")]
    table = {
        line.split()[0]: line.split(maxsplit=2) for line in lines[lines.index("This worker was started with:") + 1 :]
    }
    assert table["OMP_NUM_THREADS"][1] == str(decide_host_threads(2).value)
    assert table["OMP_NUM_THREADS"][2].endswith("for 2 ranks on this host")
    assert table["MKL_NUM_THREADS"][1:] == ["4", "set by you"]
    assert table["GLIBC_TUNABLES"][1:] == ["glibc.malloc.hugetlb=1", "default"]
    assert not any("misspelt" in line for line in lines)
    assert cli.run_command(["true"], 1, {"SPARK_ESTIMATOR_WORKER_MALLOC": "best"}) == 1
    assert "SPARK_ESTIMATOR_WORKER_MALLOC='best': expected one of keep, system" in capfd.readouterr().err


def test_settings_are_listed_with_their_effects() -> None:
    table = Settings.read({"SPARK_ESTIMATOR_WORKER_MALLOC": "System"}).describe(environ={})
    assert "SPARK_ESTIMATOR_WORKER_THREADS" in table and "SPARK_ESTIMATOR_WORKER_MALLOC" in table


def test_in_spark_threads_come_from_the_task_s_cpus(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_estimator.launch.spark.stage_job import run_on_spark

    ranks = run_on_spark(spark, look, 2, JobOptions(all_results=True))
    for rank in ranks:
        assert rank["environ"] == dict.fromkeys(THREADS, "1") and rank["threads"] == 1
        assert rank["started with"] and not rank["has still"]
    # Spark overwrites this one with its own; the tasks run in the environment in which the user has set it.
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (rank,) = run_on_spark(spark, look, 1)
    # PyTorch takes no more threads than there are cores.
    assert rank["environ"]["OMP_NUM_THREADS"] == "2" and rank["threads"] == min(2, count_available_cores())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_tasks_of_two_cpus_on_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    settings = ("spark.task.cpus=2", "spark.executorEnv.OPENBLAS_NUM_THREADS=5")
    settings += ("spark.scheduler.barrier.maxConcurrentTasksCheck.interval=1s",)
    with clusters.driver("worker_settings.py", "local-cluster[1,4,1024]", *settings, folder=tmp_path) as driver:
        results: dict[str, Any] = driver.wait()
    by_itself, as_told = results["by itself"], results["as told"]
    assert (by_itself["OMP_NUM_THREADS"], by_itself["threads"], by_itself["keeps"]) == (
        "2",
        min(2, count_available_cores()),
        True,
    )
    assert ["OMP_NUM_THREADS", "2", "from spark.task.cpus", True] in json.loads(by_itself[WORKER_CHOICES_VARIABLE])
    assert ["OPENBLAS_NUM_THREADS", "5", "set by you", False] in json.loads(by_itself[WORKER_CHOICES_VARIABLE])
    assert (as_told["OMP_NUM_THREADS"], as_told["threads"], as_told["keeps"]) == ("1", 1, False)
    assert by_itself["OPENBLAS_NUM_THREADS"] == as_told["OPENBLAS_NUM_THREADS"] == "5"


def test_only_settings_are_handed_on_and_nothing_of_a_single_rank() -> None:
    environ = {"HOROVOD_FUSION_THRESHOLD": "1", "HOROVOD_RANK": "3", "NCCL_DEBUG": "INFO", "PATH": "/bin"}
    environ |= {"SPARK_ESTIMATOR_RENDEZVOUS_FD": "5", "SPARK_ESTIMATOR_SHARED_MEMORY": "0", "HOME": "/"}
    environ |= {"SPARK_ESTIMATOR_JOB_KEY": "secret", "SPARK_ESTIMATOR_JOINED": "0/2 torchrun"}
    environ |= {"KERAS_BACKEND": "torch", "KERAS_HOME": "/k", "TF_USE_LEGACY_KERAS": "1"}
    assert module.select_forwarded_variables(environ) == {
        "KERAS_BACKEND": "torch",
        "TF_USE_LEGACY_KERAS": "1",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "NCCL_DEBUG": "INFO",
        "SPARK_ESTIMATOR_SHARED_MEMORY": "0",
    }


def test_settings_are_exported_and_what_describes_one_host_or_login_is_not() -> None:
    settings = {"MY_SETTING": "a 'quoted' $value", "PYTHONPATH": "/shared", "HOROVOD_LOG_LEVEL": "debug"}
    of_this_host = {"HOME": "/root", "TMPDIR": "/tmp/x", "CUDA_VISIBLE_DEVICES": "1", "_": "/bin/env", "": "nameless"}
    of_this_login = {"SSH_AUTH_SOCK": "/tmp/agent", "XDG_RUNTIME_DIR": "/run/1", "BASH_FUNC_module%%": "() { :; }"}
    assert exported_environment({**settings, **of_this_host, **of_this_login}) == settings


def test_a_value_that_no_process_can_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="MY_SETTING"):
        exported_environment({"MY_SETTING": "a\0b"})
