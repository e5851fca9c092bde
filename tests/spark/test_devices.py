"""The GPUs that a rank has."""

from __future__ import annotations

import pytest

from spark_estimator.spark.devices import get_available_devices


def test_of_a_rank_and_outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, 3")
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    assert get_available_devices() == []
    monkeypatch.setenv("HOROVOD_RANK", "0")
    assert get_available_devices() == ["1", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert get_available_devices() == []
