"""Which GPUs a rank sees, case by case, and on a real cluster whose workers announce GPUs that they do not have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.launch.job.gpus import (
    TaskGpus,
    divide_hosts,
    find_task_gpus,
    name_gpus,
    order_devices,
    parse_gpu_list,
    pin_gpus,
)
from tests.launch import clusters


@pytest.mark.parametrize(
    ("gpus", "seen"),
    [
        ([[], []], []),
        ([["1"], ["0"]], ["1", "0"]),
        ([["0", "1"], ["2", "3"]], ["0", "2", "1", "3"]),
        ([["0"], ["0"]], ["0"]),
        ([["0", "1"], [], ["2"]], ["0", "2", "1"]),
    ],
)
def test_device_local_rank_belongs_to_that_rank(gpus: list[list[str]], seen: list[str]) -> None:
    assert order_devices(gpus) == seen


@pytest.mark.parametrize(
    ("addresses", "visible", "owned"),
    [
        (["1"], None, ("1",)),
        (["1"], "", ("1",)),
        (["1", "0"], "5, 7", ("7", "5")),
        (["1"], "GPU-abc,GPU-def", ("GPU-def",)),
        (["3"], "5,7", ("3",)),
        (["GPU-abc"], "5,7", ("GPU-abc",)),
        ([], "5,7", ()),
    ],
)
def test_gpus_are_counted_in_what_the_executor_sees(addresses: list[str], visible: str | None, owned: Any) -> None:
    assert name_gpus(addresses, visible) == owned


def task(*names: str, uuids: tuple[str, ...] = (), there: tuple[str, ...] = (), visible: str | None = None) -> TaskGpus:
    return TaskGpus(names, uuids or ("",) * len(names), there, visible)


A, B = task("0", uuids=("GPU-a",), there=("GPU-a", "GPU-b")), task("1", uuids=("GPU-b",), there=("GPU-a", "GPU-b"))
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("tasks", "per_rank", "devices", "notice"),
    [
        ([task(), task()], 0.0, [None, None], ""),  # there are none
        ([task(), task()], None, [None, None], ""),
        ([task(there=("GPU-a",))], None, [None], ""),  # a session on this machine
        ([task(there=("GPU-a",))] * 2, 0.0, ["", ""], "there is a GPU on this host, and this job does not see it"),
        ([task(there=("GPU-a", "GPU-b"))], 0.0, [""], "there are 2 GPUs on this host"),
        ([task(there=("GPU-a",), visible="0")], 0.0, [None], ""),  # the user has set what is visible
        ([A, B], 1.0, ["0,1", "0,1"], ""),
        ([B, A], 1.0, ["1,0", "1,0"], ""),
        ([task("0", "1"), task("2", "3")], 2.0, ["0,2,1,3"] * 2, ""),
        ([A, B, A, B], 0.5, ["0", "1", "0", "1"], "local ranks 0, 2 have the same GPU, GPU-a. Each sees its own"),
        ([task("0"), task("0")], 1.0, ["0", "0"], "local ranks 0, 1 have the same GPU, 0"),  # nothing else is known
        ([task("MIG-1", uuids=("MIG-1",)), task("MIG-2", uuids=("MIG-2",))], 1.0, ["MIG-1", "MIG-2"], "parts of GPUs"),
        ([task("GPU-b", uuids=("GPU-b",)), task("GPU-a", uuids=("GPU-a",))], 1.0, ["GPU-b,GPU-a"] * 2, ""),
        ([A, task()], 1.0, ["0", "0"], ""),
    ],
)
def test_what_each_rank_sees(
    tasks: list[TaskGpus], per_rank: float | None, devices: list[str | None], notice: str
) -> None:
    made = [pin_gpus(tasks, local_rank, per_rank) for local_rank in range(len(tasks))]
    assert [rank.variables.get("CUDA_VISIBLE_DEVICES") for rank in made] == devices
    assert notice in made[0].notice and bool(notice) == bool(made[0].notice)
    numbered = [bool(seen) and seen.replace(",", "").isdecimal() for seen in devices]
    assert [rank.variables.items() >= PCI.items() for rank in made] == numbered


def test_a_gpu_that_was_promised_twice_is_refused_by_its_uuid() -> None:
    with pytest.raises(ValueError, match="local ranks 0, 1 have the same GPU, GPU-a, though each was to have 1 of its"):
        pin_gpus([A, A], 0, 1.0)


def test_containers_that_number_their_gpus_themselves_are_hosts_of_their_own() -> None:
    container = task("0", uuids=("GPU-a",), there=("GPU-a",))
    other = task("0", uuids=("GPU-b",), there=("GPU-b",))
    apart = divide_hosts(["h", "h", "h", "i"], [container, other, container, other])
    assert apart[0] == apart[2] != apart[1] and apart[0].startswith("h/") and apart[3] == "i"
    assert pin_gpus([container], 0, 1.0).variables["CUDA_VISIBLE_DEVICES"] == "0"
    assert divide_hosts(["h", "h"], [A, B]) == ["h", "h"]
    assert divide_hosts(["h", "h"], [task("0"), task("0")]) == ["h", "h"]


LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa-1)
  MIG 3g.20gb     Device  0: (UUID: MIG-bb-1)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-aa-2)
"""


def nvidia_smi(folder: Path, listing: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{listing}END\n")
    program.chmod(0o755)


def test_what_nvidia_smi_says(tmp_path: Path) -> None:
    assert parse_gpu_list(LISTING) == {"0": "GPU-aa-1", "1": "GPU-aa-2"}
    assert parse_gpu_list("No devices found.\n") == {}
    nvidia_smi(tmp_path, LISTING)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    there = ("GPU-aa-1", "GPU-aa-2")
    assert find_task_gpus(["1"], {"PATH": path}) == TaskGpus(("1",), ("GPU-aa-2",), there, None)
    assert find_task_gpus(["0"], {"PATH": path, "CUDA_VISIBLE_DEVICES": "1"}) == TaskGpus(
        ("1",), ("GPU-aa-2",), there, "1"
    )
    assert find_task_gpus(["0"], {"PATH": path, "CUDA_VISIBLE_DEVICES": "MIG-bb-1"}).uuids == ("MIG-bb-1",)
    assert find_task_gpus(["0"], {"PATH": "/nowhere"}) == TaskGpus(("0",), ("",))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho trouble; exit 9\n")
    assert find_task_gpus([], {"PATH": path}) == TaskGpus()


# One numbering on both workers; whether the GPUs are the same ones, as on a host, or others, as in containers, is in
# the file `mode`. The program is in an executor's folder when it is called.
PRETENDED = """#!/bin/sh
mode=$(cat {folder}/mode)
case $mode:$PWD in
none:*) exit 9 ;;
apart:*work0*) first=GPU-a second=GPU-b ;;
apart:*) first=GPU-c second=GPU-d ;;
*) first=GPU-a second=GPU-b ;;
esac
echo "GPU 0: NVIDIA H200 (UUID: $first)"
echo "GPU 1: NVIDIA H200 (UUID: $second)"
"""


def run_driver(folder: Path, master: str) -> tuple[dict[str, Any], str]:
    (folder / "nvidia-smi").write_text(PRETENDED.format(folder=folder))
    (folder / "gpus.sh").write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["0", "1"]}\'\n')
    for name in ("nvidia-smi", "gpus.sh"):
        (folder / name).chmod(0o755)
    with clusters.driver("gpu_cases.py", master, str(folder), folder=folder) as driver:
        results: dict[str, Any] = driver.wait(400)
        return results, driver.output()


def seen(ranks: Any) -> list[str | None]:
    assert isinstance(ranks, list), ranks
    return [rank["CUDA_VISIBLE_DEVICES"] for rank in ranks]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_workers_of_one_host_that_number_their_gpus_alike(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with clusters.standalone(tmp_path) as address:
        results, output = run_driver(tmp_path, address)
    # The session's tasks ask for no GPU and its executors have some: each rank gets one, by a profile of its stage.
    assert seen(results["1 ranks"]) in (["0"], ["1"])
    for size in (2, 3, 4):
        each = seen(results[f"{size} ranks"])
        assert len(each) == size and {gpu for devices in each for gpu in str(devices).split(",")} <= {"0", "1"}
    assert sorted(map(str, seen(results["4 ranks"]))) == ["0", "0", "1", "1"], (
        "each its own, as nobody knows which is which"
    )
    assert "local ranks 0, " in output and " have the same GPU, 0. Each sees its own GPUs only" in output

    apart = results["apart"]
    assert [sorted(str(devices).split(",")) for devices in seen(apart)] == [["0", "1"]] * 4
    assert [rank["local"] for rank in apart] == [[0, 2], [1, 2], [0, 2], [1, 2]], "two containers are two hosts"

    assert "WorkerFailedError: " in results["same"] and "have the same GPU, GPU-" in results["same"]
    assert "though each was to have 1 of its own" in results["same"]

    refusal = results["2 for each of 3"]
    arithmetic = "2 executors x 2 GPUs / 2 per rank (spark.spark_estimator.gpusPerRank)"
    assert refusal.startswith("NotEnoughSlotsError: 3 ranks need 3 slots at the same time, but this session has 2: ")
    assert arithmetic in refusal
    assert "have the same GPU" in results["2 for each of 2"], "whole workers that announce the same"
    assert len(seen(results["0.5 for each of 4"])) == 4 and set(seen(results["0.5 for each of 4"])) <= {"0", "1"}

    assert seen(results["0 for each of 2"]) == ["", ""]
    assert output.count("there are 2 GPUs on this host, and this job does not see them") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_gpus_that_tasks_ask_for_are_counted_in_what_their_executor_sees(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    results, _ = run_driver(tmp_path, "local-cluster")
    ranks = results["per task"]
    assert sorted(seen(ranks)[0].split(",")) == ["6", "7"] and len(set(seen(ranks))) == 1, ranks
    assert {rank["CUDA_DEVICE_ORDER"] for rank in ranks} == {"PCI_BUS_ID"}
    assert {rank["OMP_NUM_THREADS"] for rank in ranks} == {"2"}, "spark.task.cpus"
