"""Two hundred jobs of mixed kinds in one session: none sees another's traces, and nothing is left of any."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import spark_estimator.torch  # noqa: F401  # so that functions that name it are preloaded
from spark_estimator import HorovodRunner, TorchEstimator
from spark_estimator.errors import WorkerFailedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
JOBS = 200


def find_traces() -> list[str]:
    """What an earlier job may have left in this process; and leave the same for the next one."""
    import torch

    traces = {
        "module": "a_trace" in sys.modules,
        "variable": "A_TRACE" in os.environ,
        "folder": os.getcwd().endswith("a trace"),
        "path": "/a/trace" in sys.path,
        "handler": signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL,
        "limit": resource.getrlimit(resource.RLIMIT_CORE)[0] == 12_345,
        "dtype": torch.get_default_dtype() is not torch.float32,
        "gradients": not torch.is_grad_enabled(),
        "random": random.getstate() == random.Random(5).getstate() or torch.initial_seed() == 5,
        "descriptor": any(path.resolve() == Path("/etc/hostname") for path in Path("/proc/self/fd").iterdir()),
        "thread": any(thread.name == "a trace" for thread in threading.enumerate()),
    }  # fmt: skip
    sys.modules["a_trace"] = sys
    os.environ["A_TRACE"] = "1"
    Path("a trace").mkdir(exist_ok=True)
    os.chdir("a trace")
    sys.path.insert(0, "/a/trace")
    signal.signal(signal.SIGUSR2, lambda *_: None)
    resource.setrlimit(resource.RLIMIT_CORE, (12_345, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    random.seed(5)
    torch.manual_seed(5)
    sys.modules["an_open_file"] = open("/etc/hostname")  # type: ignore[assignment]  # noqa: SIM115
    threading.Thread(target=time.sleep, args=(1000,), name="a trace", daemon=True).start()
    return [name for name, seen in traces.items() if seen]


def run_collective() -> list[str]:
    import numpy
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
    assert len(set(hvd.allgather_object(float(numpy.random.random())))) == hvd.size(), "both ranks draw the same"
    return find_traces()


def fail() -> None:
    find_traces()
    raise ValueError("on purpose")


def fit(df: DataFrame) -> list[float]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        num_proc=2, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loss=torch.nn.MSELoss(),
        feature_cols=["x"], label_cols=["y"], batch_size=8, epochs=2, random_seed=1, verbose=0,
    )  # fmt: skip
    return [epoch["train"]["loss"] for epoch in estimator.fit(df).getHistory()]


def count_resources() -> dict[str, int]:
    """What this process and all that descend from it take, Spark's included; processes that have ended count, too."""
    children = psutil.Process().children(recursive=True)
    memory = 0
    for child in children:
        with contextlib.suppress(psutil.Error):
            memory += child.memory_info().rss
    return {
        "processes": len(children),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "MiB": memory >> 20,
        "files": len(list(Path("/dev/shm").iterdir())),
    }


def test_two_hundred_jobs(spark: SparkSession) -> None:
    df = spark.createDataFrame([(float(x), 2.0 * x) for x in range(32)], "x double, y double").cache()
    expected = fit(df)
    before: dict[str, int] = {}
    chooser = random.Random(1)
    counts: dict[str, int] = {}
    for number in range(JOBS):
        kind = chooser.choice(["function", "function", "local", "collective", "fit", "failure"])
        counts[kind] = counts.get(kind, 0) + 1
        seen: Any = []
        if kind == "failure":
            with pytest.raises(WorkerFailedError, match="on purpose"):
                HorovodRunner(np=2).run(fail)
        elif kind == "fit":
            assert fit(df) == expected
        else:
            np = -2 if kind == "local" else 2
            seen = HorovodRunner(np=np).run(find_traces if kind == "function" else run_collective)
        assert seen == [], f"job {number}, a {kind}, sees what another one has left: {seen}"
        if number == JOBS // 4:
            before = count_resources()
    after = count_resources()
    print(counts, before, after)
    for name in ("processes", "descriptors", "threads", "files"):
        assert after[name] <= before[name] + 2, (name, before, after)
    assert after["MiB"] <= before["MiB"] * 1.2, (before, after)
