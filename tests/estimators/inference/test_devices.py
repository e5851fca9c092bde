"""The GPU that a task predicts on, by what Spark, CUDA_VISIBLE_DEVICES and the user say."""

from __future__ import annotations

import pytest

from spark_estimator.estimators.inference.devices import TaskGpu, choose_gpu, describe_task, set_variables
from tests.estimators.torch.stand_in_cuda import spark_task


@pytest.mark.parametrize(
    ("address", "visible", "index"),
    [
        ("1", None, 1),
        ("2", None, None),  # there are two
        ("1", "6,7", 1),  # a number of the GPUs that the executor sees
        ("7", "6, 7", 1),  # or a name of CUDA's
        ("5", "6,7", None),
        ("GPU-b", None, 1),
        ("b", None, 1),
        ("GPU-c", None, None),
        ("GPU-c", "GPU-b,GPU-c", 1),
        ("0", "", 0),
        ("MIG-x", "MIG-x", 0),
        ("MIG-y", "MIG-x", None),
    ],
)
def test_an_address_is_one_of_the_devices_of_this_process(address: str, visible: str | None, index: int | None) -> None:
    assert TaskGpu(address, 0).find_index(visible, 2, "ab".__getitem__) == index


def test_tasks_without_an_address_take_the_devices_in_turn() -> None:
    def never(_: int) -> str:
        raise AssertionError

    assert [TaskGpu("", partition).find_index(None, 2, never) for partition in range(4)] == [0, 1, 0, 1]
    assert TaskGpu("", 3).find_index(None, 0, never) is None


def test_the_choice_of_a_task() -> None:
    assert choose_gpu("auto") is None and choose_gpu("cpu") is None
    assert choose_gpu("cuda") == TaskGpu("", 0)
    with spark_task(partition=3):
        assert choose_gpu("auto") is None and choose_gpu("cuda") == TaskGpu("", 3)
    with spark_task("1", "0", partition=3):
        assert choose_gpu("auto") == choose_gpu("cuda") == TaskGpu("1", 3)
        assert choose_gpu("cpu") is None


def test_cuda_numbers_gpus_as_spark_does() -> None:
    variables: dict[str, str] = {}
    set_variables(TaskGpu("GPU-a", 0), variables)
    assert variables == {}
    set_variables(TaskGpu("1", 0), variables)
    assert variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    set_variables(TaskGpu("MIG-a", 0), variables)
    assert variables["CUDA_VISIBLE_DEVICES"] == "MIG-a"
    users = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    set_variables(TaskGpu("1", 0), users)
    assert users == {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}


def test_a_task_is_described() -> None:
    assert describe_task().startswith("process ")
    with spark_task("0", partition=2):
        assert describe_task().startswith("task 7 of stage 5 (partition 2) on host ")
