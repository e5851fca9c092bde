"""`TorchDistributor`: PySpark's arguments, results and errors, on this package's ranks."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from spark_estimator import TorchDistributor
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.job import gpus


def train(scale: float, *, offset: float = 0.0) -> tuple[int, float]:
    """A program from PySpark's own documentation."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    tensor = torch.ones(1) * scale + offset
    dist.all_reduce(tensor)
    rank = dist.get_rank()
    dist.destroy_process_group()
    return rank, tensor.item()


def test_its_arguments_are_pysparks() -> None:
    theirs = pytest.importorskip("pyspark.ml.torch.distributor").TorchDistributor
    for name in ("__init__", "run"):
        ours, expected = (inspect.signature(getattr(each, name)).parameters for each in (TorchDistributor, theirs))
        assert [(each.name, each.default, each.kind) for each in ours.values()] == [
            (each.name, each.default, each.kind) for each in expected.values()
        ]


def test_rank_0s_value_comes_back() -> None:
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    assert distributor.run(train, 2.0, offset=1.0) == (0, 6.0)


def test_a_script_gives_none_and_takes_no_keywords(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write(sys.argv[2])")
    distributor = TorchDistributor(use_gpu=False)
    assert distributor.run(str(script), tmp_path / "out", 3) is None
    assert (tmp_path / "out").read_text() == "3"
    with pytest.raises(ValueError, match="takes no keyword arguments"):
        distributor.run(str(script), steps=1)


@pytest.mark.parametrize("processes", [0, -1, "2", True])
def test_a_number_of_processes_that_cannot_be(processes: int) -> None:
    with pytest.raises(ValueError, match="num_processes has to be a positive integer"):
        TorchDistributor(processes, use_gpu=False)


def test_a_failure_is_a_runtime_error_with_the_ranks_traceback() -> None:
    with pytest.raises(WorkerFailedError, match="ZeroDivisionError") as raised:
        TorchDistributor(use_gpu=False).run(lambda: 1 / 0)
    assert isinstance(raised.value, RuntimeError)


def test_gpus_are_demanded_and_limit_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_task_gpus", lambda *_: gpus.TaskGpus())
    with pytest.raises(RuntimeError, match="has no GPU"):
        TorchDistributor()
    monkeypatch.setattr(gpus, "find_task_gpus", lambda *_: gpus.TaskGpus(there=("GPU-1", "GPU-2")))
    with pytest.warns(UserWarning, match="num_processes=3 is more than the 2 GPUs"):
        assert TorchDistributor(3).num_processes == 2
