"""What runs in a cell's environment: each check prints a line of JSON, with its outcome and its seconds.

It imports nothing of this folder. ``python smoke.py classic``, ``python smoke.py connect``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_RANKS = 2


def main() -> int:
    """Runs the checks of the kind of session that the command line names."""
    checks: dict[str, dict[str, Callable[[], None]]] = {
        "classic": {
            "doctor": doctor,
            "horovodrun": horovodrun,
            "runner": runner,
            "process group": process_group,
            "failure": failure,
            "script": script,
            "rows": rows,
            "cluster doctor": cluster_doctor,
            "estimator": estimator,
            "save and load": save_and_load,
            "elastic": elastic,
        },
        "connect": {
            "runner": runner,
            "script": script,
            "rows": rows,
            "estimator": estimator,
            "save and load": save_and_load,
        },
    }
    kind = sys.argv[1]
    names = ("pyspark", "torch", "numpy", "pandas", "pyarrow", "cloudpickle")
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}
    print(json.dumps({"versions": versions}), flush=True)
    for name, check in checks[kind].items():
        started = time.monotonic()
        try:
            check()
            outcome = "ok"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"[:2000]
        line = {"check": f"{kind}: {name}", "outcome": outcome, "seconds": round(time.monotonic() - started, 1)}
        print(json.dumps(line), flush=True)
    return 0


def session() -> Any:
    """The session of the checks."""
    from spark_estimator.launch.spark.java_environment import choose_java_environment

    os.environ.update(choose_java_environment())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if sys.argv[1] == "connect":
        os.environ["SPARK_TESTING"] = "1"  # a port that is free, not always the same one
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if sys.argv[1] == "connect":
        return builder.remote(f"local[{_RANKS}]").getOrCreate()
    return (
        builder.master(f"local[{_RANKS}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _command(*words: str) -> str:
    answer = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    if answer.returncode != 0:
        raise RuntimeError(f"exit status {answer.returncode}: {(answer.stdout + answer.stderr)[-1500:]}")
    return answer.stdout


def doctor() -> None:
    """``python -m spark_estimator doctor --spark``."""
    _command(sys.executable, "-m", "spark_estimator", "doctor", "--spark")


def cluster_doctor() -> None:
    """``spark_estimator.doctor.cluster`` on the session."""
    from spark_estimator import doctor as doctors

    findings = doctors.cluster(session())
    missing = [str(finding) for finding in findings if finding.state.name == "MISSING"]
    if missing:
        raise RuntimeError("; ".join(missing))


def horovodrun() -> None:
    """A script on two ranks of this machine."""
    text = _command(
        sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", str(_RANKS), sys.executable, str(_script())
    )
    if text.count("sum 3.0") != _RANKS:
        raise RuntimeError(text)


def _script() -> Path:
    path = Path(tempfile.mkdtemp(prefix="matrix-")) / "train.py"
    path.write_text(
        "import sys, torch, horovod.torch as hvd\n"
        "hvd.init()\n"
        "print('sum', hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item(), *sys.argv[1:])\n"
        "if sys.argv[1:]:\n"
        "    open(f'{sys.argv[1]}/{hvd.rank()}', 'w').close()\n"
    )
    return path


def runner() -> None:
    """`HorovodRunner` trains a model on two ranks, whose weights are then equal."""
    from spark_estimator import HorovodRunner

    session()

    def train(rows: int) -> Any:
        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(rows, 3)).square().mean().backward()
            optimizer.step()
        everyone = hvd.allgather(model.weight.detach())
        torch.distributed.init_process_group("gloo")
        both = torch.ones(1)
        torch.distributed.all_reduce(both)
        return hvd.size(), bool((everyone[0] == everyone[1]).all()), both.item()

    value = HorovodRunner(np=_RANKS).run(train, rows=8)
    if value != (_RANKS, True, float(_RANKS)):
        raise RuntimeError(f"returned {value}")


def process_group() -> None:
    """DDP on this package's backend, and a group of one rank; PyTorch 2.6 is refused."""
    from spark_estimator import HorovodRunner

    session()

    def train() -> Any:
        import torch
        import torch.distributed as dist

        try:
            dist.init_process_group("spark_estimator")
        except RuntimeError as error:
            if not torch.__version__.startswith("2.6.") or "needs PyTorch 2.7" not in str(error):
                raise
            return [4.0] * 4, 1.0
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        model(torch.full((8, 4), float(rank))).sum().backward()
        alone = dist.new_group([0])
        total = torch.ones(1)
        if rank == 0:
            dist.all_reduce(total, group=alone)
        dist.destroy_process_group()
        return model.module.weight.grad[0].tolist(), total.item()

    value = HorovodRunner(np=_RANKS).run(train)
    if value != ([4.0] * 4, 1.0):
        raise RuntimeError(f"returned {value}")


def failure() -> None:
    """A rank that raises is named, with its own traceback."""
    from spark_estimator import HorovodRunner
    from spark_estimator.errors import WorkerFailedError

    session()

    def fail() -> None:
        import spark_estimator.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("boom")
        hvd.barrier()

    try:
        HorovodRunner(np=_RANKS).run(fail)
    except WorkerFailedError as error:
        if error.rank == 1 and 'raise ValueError("boom")' in str(error.__cause__):
            return
        raise RuntimeError(f"{error}; {error.__cause__}") from error
    raise RuntimeError("nothing was raised")


def script() -> None:
    """`HorovodRunner` runs a file with an argument."""
    from spark_estimator import HorovodRunner

    session()
    folder = tempfile.mkdtemp(prefix="matrix-")
    HorovodRunner(np=_RANKS).run(str(_script()), folder)
    if sorted(os.listdir(folder)) != [str(rank) for rank in range(_RANKS)]:
        raise RuntimeError(f"wrote {os.listdir(folder)}")


def rows() -> None:
    """`HorovodRunner` hands each rank a share of a DataFrame."""
    from spark_estimator import HorovodRunner

    def count(data: Any) -> int:
        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        rows = sum(len(y) for _, y in data.loader(8, feature_cols=["x", "v"], label_cols=["y"]))
        return int(hvd.allreduce(torch.tensor(rows), op=hvd.Sum))

    triples = [(i, [1.0, 2.0], float(i)) for i in range(21)]
    frame = session().createDataFrame(triples, "x int, v array<double>, y double")
    value = HorovodRunner(np=_RANKS).run(count, data=frame)
    if value != 21:
        raise RuntimeError(f"returned {value}")


@functools.cache
def _fitted() -> tuple[Any, Any]:
    import torch

    from spark_estimator import TorchEstimator

    rows = [(float(i % 7), float(i % 3), float(i % 7 + i % 3)) for i in range(200)]
    frame = session().createDataFrame(rows, "a double, b double, y double")
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    fitted = TorchEstimator(
        num_proc=_RANKS,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.05),
        loss=torch.nn.MSELoss(),
        feature_cols=["a", "b"],
        label_cols=["y"],
        batch_size=16,
        epochs=15,
        verbose=0,
    ).fit(frame)
    return fitted, frame


def _error_of(model: Any, frame: Any) -> float:
    rows = model.transform(frame).select("y", "y__output").collect()
    return float(sum((row["y"] - float(row["y__output"])) ** 2 for row in rows)) / len(rows)


def estimator() -> None:
    """A fit that lowers the loss, and its predictions."""
    fitted, frame = _fitted()
    error = _error_of(fitted, frame)
    if not error < 2:
        raise RuntimeError(f"the mean squared error is {error}")


def save_and_load() -> None:
    """The model that is loaded predicts what the saved one predicted."""
    from spark_estimator.estimators.torch.model import TorchModel

    fitted, frame = _fitted()
    path = tempfile.mkdtemp(prefix="matrix-")
    fitted.write().overwrite().save(f"file://{path}/model")
    loaded = TorchModel.load(f"file://{path}/model")
    before, after = _error_of(fitted, frame), _error_of(loaded, frame)
    if abs(before - after) > 1e-9:
        raise RuntimeError(f"{before} before, {after} after")


def elastic() -> None:
    """An elastic job on the session."""
    from spark_estimator.spark import run_elastic

    session()

    def rank() -> int:
        import spark_estimator.torch as hvd

        hvd.init()
        return int(hvd.rank())

    values = run_elastic(rank, num_proc=_RANKS)
    if values != list(range(_RANKS)):
        raise RuntimeError(f"returned {values}")


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
