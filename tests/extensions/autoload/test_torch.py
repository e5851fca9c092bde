"""What torch calls at its import in workers."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.extensions.autoload import spark_estimator_torch_autoload as autoload

VARIABLE = "ACCELERATE_USE_CPU"


def test_accelerate_hears_that_a_rank_has_no_gpu() -> None:
    torch = pytest.importorskip("torch")

    def seen() -> str | None:
        import torch

        assert torch.ones(1).item() == 1
        return os.environ.get(VARIABLE)

    expected = None if torch.cuda.device_count() else "true"
    assert HorovodRunner(np=-1).run(seen) == expected


@pytest.mark.parametrize(("gpus", "before", "after"), [(0, None, "true"), (2, None, None), (0, "false", "false")])
def test_a_gpu_or_a_value_of_the_users(
    monkeypatch: pytest.MonkeyPatch, gpus: int, before: str | None, after: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    else:
        monkeypatch.setenv(VARIABLE, "")  # so that it is as before when the test is over
        del os.environ[VARIABLE]
    cuda = SimpleNamespace(device_count=lambda: gpus)
    torch = SimpleNamespace(
        cuda=cuda,
        accelerator=SimpleNamespace(current_accelerator=lambda: "cuda"),
        get_device_module=lambda kind: cuda,
    )
    autoload.choose_device_for_accelerate(torch)
    assert os.environ.get(VARIABLE) == after


@pytest.mark.parametrize("devices", [0, 1])
def test_accelerators_other_than_nvidias_count(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    monkeypatch.setenv(VARIABLE, "")
    del os.environ[VARIABLE]
    torch = SimpleNamespace(
        cuda=SimpleNamespace(device_count=lambda: 0),
        accelerator=SimpleNamespace(current_accelerator=lambda: "xpu"),
        get_device_module={"xpu": SimpleNamespace(device_count=lambda: devices)}.__getitem__,
    )
    autoload.choose_device_for_accelerate(torch)
    assert os.environ.get(VARIABLE) == (None if devices else "true")


def no_accelerator() -> str:
    raise RuntimeError("Cannot access accelerator device when none is available.")


@pytest.mark.parametrize("old", [{"accelerator": SimpleNamespace(current_accelerator=no_accelerator)}, {}])
def test_torch_2_6_and_older(monkeypatch: pytest.MonkeyPatch, old: dict[str, object]) -> None:
    """2.6 raises where there is no accelerator, and that ended the import of torch in every rank."""
    monkeypatch.setenv(VARIABLE, "")
    del os.environ[VARIABLE]
    autoload.choose_device_for_accelerate(SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 0), **old))
    assert os.environ.get(VARIABLE) == "true"
