"""Files of PyTorch: no code that they name is run, and a version with a known fault is named."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from spark_estimator.checkpoint.restricted import load_restricted, warn_of_fault


def test_code_of_a_file_is_not_run(tmp_path: Path) -> None:
    class Poison:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "code has run",))

    stream = io.BytesIO()
    torch.save({"weight": Poison()}, stream)
    stream.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="GLOBAL"):
        load_restricted(stream)
    assert not (tmp_path / "code has run").exists()


@pytest.mark.parametrize("version", ["2.6.0+cu124", "2.9.1"])
def test_a_version_with_a_fault_is_named_once(version: str) -> None:
    warn_of_fault.cache_clear()
    with pytest.warns(UserWarning, match=rf"PyTorch {version[:3]}.*CVE-2026-24747.*install PyTorch 2\.10 or later"):
        warn_of_fault(version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_fault(version)
    warn_of_fault.cache_clear()


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0+cpu", "3.0.0", torch.__version__])
def test_others_are_not(version: str) -> None:
    warn_of_fault.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_fault(version)
