"""`TorchModel` in a folder: loaded without running code, into a module, or with trust."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from spark_estimator import DataError, TorchModel
from tests.estimators.conftest import Poison, line_rows, linear, rewritten, saved_by_torch
from tests.estimators.torch_models import Own, expected, model_of


def test_saved_and_loaded_without_running_code(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 1))
    saved = model_of(net, history=[{"epoch": 0}], output_cols=["guess"])
    saved.save(path)
    loaded = TorchModel.load(path)
    assert loaded.uid == saved.uid
    assert (loaded.getHistory(), loaded.getOutputCols(), loaded.getRunId()) == ([{"epoch": 0}], ["guess"], "run")
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(net.eval()))
    with pytest.raises(FileExistsError, match=r"overwrite\(\)"):
        saved.save(path)
    saved.write().overwrite().save(path)
    manifest = json.loads((tmp_path / "model" / "spark_estimator.json").read_text())
    assert manifest["inputs"][0]["names"] == ["features"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"], "nothing half-written is left"


def test_own_classes_need_a_module_or_trust(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    model_of(Own()).save(path)
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own.*model=YourModule.*trust=True"):
        TorchModel.load(path)
    blank = Own()
    nn.init.zeros_(blank.inner.weight)
    assert numpy.allclose(TorchModel.load(path, model=blank).predict(line_rows()[0]), expected(linear()))
    assert not blank.inner.weight.any(), "the module that was given stays as it was"
    assert numpy.allclose(TorchModel.load(path, trust=True).predict(line_rows()[0]), expected(linear()))


def test_a_class_of_a_notebook_s_cell_or_of_a_function_is_saved_whole(tmp_path: Path) -> None:
    """The loading program lacks this class."""
    path = str(tmp_path / "model")
    program = f"""
import torch
from torch import nn
from tests.estimators.torch_models import model_of

FACTOR = 2.0

class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1, bias=False)
        nn.init.ones_(self.inner.weight)

    def forward(self, x):
        return self.inner(x) * FACTOR

def inside():
    class Own(Doubled):
        pass
    return Own()

model_of(Doubled()).save({path!r})
model_of(inside()).save({path + "2"!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for folder in (path, path + "2"):
        with pytest.raises(DataError, match=r"classes other than torch\.nn's own"):
            TorchModel.load(folder)
        predicted = TorchModel.load(folder, trust=True).predict(line_rows()[0])
        assert numpy.allclose(predicted.ravel(), 2 * line_rows()[0].sum(axis=1), atol=1e-5)


def test_a_poisoned_file_runs_nothing(tmp_path: Path, marker: Path) -> None:
    path = tmp_path / "model"
    model_of(linear()).save(str(path))
    rewritten(path, "module.pt", saved_by_torch(Poison(marker)))
    with pytest.raises(DataError, match=r"classes other than torch\.nn's own.*GLOBAL"):
        TorchModel.load(str(path))
    rewritten(path, "weights.pt", saved_by_torch({"weight": Poison(marker)}))
    with pytest.raises(DataError, match=r"weights\.pt holds more than numbers, and is not read: .*GLOBAL") as refusal:
        TorchModel.load(str(path), model=linear())
    assert "weights_only" not in str(refusal.value), "PyTorch's advice is not repeated"
    assert not marker.exists()
    with pytest.raises(DataError, match="holds more than numbers"):
        TorchModel.load(str(path), model=linear(), trust=True)
    assert not marker.exists(), "numbers are read in the same way with trust"


def test_a_damaged_folder_is_not_loaded(tmp_path: Path) -> None:
    """One byte of each file, at any place, its end, or all of it."""
    path = tmp_path / "model"
    net = linear()
    model_of(net, decoders={"features": len}).save(str(path))
    for name in ("weights.pt", "module.pt", "decoders.pkl"):
        file = path / name
        whole = file.read_bytes()
        numbers = whole.find(net.weight.detach().numpy().tobytes())  # only the first file has them
        for place in (0, numbers if numbers > 0 else len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
            with pytest.raises(DataError, match=f"{name} is damaged: its {len(whole)} bytes don't match the SHA-256"):
                TorchModel.load(str(path), trust=True)
        for torn in (whole[:-1], b""):
            file.write_bytes(torn)
            with pytest.raises(DataError, match=f"{name} is damaged: its {len(torn)} bytes don't match"):
                TorchModel.load(str(path), trust=True)
        file.unlink()
        with pytest.raises(DataError, match=f"the TorchModel is incomplete: {name} is missing"):
            TorchModel.load(str(path), trust=True)
        file.write_bytes(whole)
    assert TorchModel.load(str(path), trust=True).getDecoders() == {"features": len}


def test_buffers_that_are_not_in_the_state_are_saved(tmp_path: Path) -> None:
    net = nn.Sequential(linear())
    net[0].register_buffer("extra", torch.full((1,), 2.0), persistent=False)
    model_of(net).save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.getModel()[0].extra.tolist() == [2.0]  # type: ignore[index]
    assert numpy.allclose(loaded.predict(line_rows()[0]), expected(linear()))
