"""Where a collective works on its tensors, and on which stream of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.torch.collectives import device


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., torch.Tensor]]:
    """In a job of one: makes tensors that pass for tensors on a CUDA device of that number, but are not looked into."""
    numbers: dict[int, int] = {}
    monkeypatch.setattr(device, "find_cuda_device", lambda tensor: numbers.get(id(tensor), device.NO_DEVICE))
    created = []

    def make(number: int) -> torch.Tensor:
        tensor = torch.ones(2)
        created.append(tensor)
        numbers[id(tensor)] = number
        return tensor

    hvd.init()
    yield make
    hvd.shutdown()


def test_tensors_of_one_group_are_on_one_device(alone: Callable[..., torch.Tensor]) -> None:
    on_gpu, other, on_host = alone(0), alone(1), torch.ones(2)
    assert device.find_location([on_host, "no tensor"], "allreduce", None) == device.IN_HOST_MEMORY
    assert device.find_location([on_gpu, on_gpu], "allreduce", None).engines_device == 0
    for mixed in ([on_gpu, on_host], [on_host, on_gpu], [on_gpu, other]):
        with pytest.raises(ValueError, match=r"on rank 0: tensor 0 of the group is on .* and tensor 1 on"):
            device.find_location(mixed, "grouped_allreduce", None)
        assert device.find_common_location(mixed, None) == device.IN_HOST_MEMORY  # where copies will do


def test_a_second_gpu_of_a_rank_goes_through_the_host(
    alone: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(device, "_warned_of", set())
    monkeypatch.setattr(device._log, "warning", lambda text, *args: warnings.append(text % args))
    assert device.find_common_location([alone(1)], None).number == 1
    for _ in range(2):
        assert not device.find_common_location([alone(0)], None).on_gpu
    [warning] = warnings
    assert "cuda:0 are copied through host memory" in warning
    assert device.find_common_location([alone(1)], None).number == 1


def test_copies_can_be_asked_for(alone: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "copy")
    hvd.init()
    assert not device.find_location([alone(0), torch.ones(1)], "grouped_allreduce", None).on_gpu
    assert not device.find_common_location([alone(0)], None).on_gpu


def test_a_stream_that_is_being_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match=r"allgather: the current stream is being captured into a CUDA graph"):
        device.TensorLocation(torch.device("cuda", 0), 0, 0).make_gpu("allgather")
    assert device.IN_HOST_MEMORY.make_gpu("allgather") is None


def test_what_counts_as_a_cuda_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Says(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 3

    tensor = torch.ones(1).as_subclass(Says)
    assert device.find_cuda_device(tensor) == 3
    assert device.find_cuda_device(torch.ones(1)) == device.find_cuda_device(7) == device.NO_DEVICE
    monkeypatch.setattr(device, "_IS_ROCM", True)
    assert device.find_cuda_device(tensor) == device.NO_DEVICE


def test_the_default_stream_is_waited_for_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is 0, which ``torch.cuda.ExternalStream`` takes for none: it would make another stream."""
    waited: list[str] = []

    class Current:
        def wait_stream(self, stream: str) -> None:
            waited.append(stream)

    def external(address: int, device: int) -> str:
        assert address, "a stream that nobody has used"
        return f"{address} of {device}"

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current())
    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    device.wait_for_streams(3, [7, 0])
    assert waited == ["7 of 3", "default of 3"]
