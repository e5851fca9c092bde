"""Files of PyTorch, read without running code."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from spark_estimator import DataError
from spark_estimator.estimators.torch.reading import RefusedObjectsError, describe_error, read


def test_classes_are_read_if_they_are_known_or_trusted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    torch.save(nn.ReLU(), file)
    with pytest.raises(RefusedObjectsError, match=r"GLOBAL torch\.nn\.modules.activation\.ReLU") as refused:
        read(file)
    assert "Please" not in str(refused.value), "PyTorch's advice would turn the limits off"
    assert isinstance(read(file, [nn.ReLU, OrderedDict, set]), nn.ReLU)
    assert isinstance(read(file, trust=True), nn.ReLU)
    with pytest.raises(RefusedObjectsError):
        read(file)  # what was known for a call is not for the next


def test_tensors_need_nothing(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "file")
    assert read(tmp_path / "file")["a"].tolist() == [1.0, 1.0]


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(pickle.dumps([1]))
    with pytest.raises(DataError, match=r"is no file of PyTorch: \d+ bytes, which are no whole zip archive") as error:
        read(file)
    assert not isinstance(error.value, RefusedObjectsError)
    torch.save([1], file)
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match="is no file of PyTorch"):
        read(file, trust=True)


def test_an_error_is_one_line() -> None:
    assert describe_error(ValueError("first\n second")) == "ValueError: first"
    assert describe_error(ValueError()) == "ValueError"
    assert (
        describe_error(pickle.UnpicklingError("a\nUnsupported global: GLOBAL x Please use y"))
        == "Unsupported global: GLOBAL x"
    )
