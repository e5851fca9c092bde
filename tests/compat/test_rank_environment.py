"""The rank and the size in a process's environment."""

from __future__ import annotations

import pytest

from spark_estimator.compat.rank_environment import get_env_rank_and_size


def test_of_a_launcher_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_RANK", raising=False)
    assert get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("HOROVOD_RANK", "2")
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    assert get_env_rank_and_size() == (2, 3)
