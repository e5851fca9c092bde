"""Reports of tasks on healthy executors."""

from __future__ import annotations

from typing import Any

from spark_estimator.doctor.verdicts import MIB, DriverSide

HERE = DriverSide("3.11.2", "0.1.0", {"torch": "2.13.0", "numpy": "2.1", "pyarrow": "20.0", "pyspark": "4.3.0"})


def report(partition: int = 0, executor: str = "a:1", host: str = "a", **changes: Any) -> dict[str, Any]:
    """What a task reports on a healthy executor, with `changes`."""
    return {
        "partition": partition,
        "executor": executor,
        "host": host,
        "task_cpus": 1,
        "python": {"version": "3.11.2", "executable": "/usr/bin/python3"},
        "package": {"version": "0.1.0", "path": "/site/spark_estimator"},
        "packages": dict(HERE.packages),
        "engine": {"build": "ABI 1"},
        "driver": {"address": "10.0.0.1:5", "clock": 0.01, "clock_within": 0.002},
        "disk": {"folder": "/tmp", "free": 50_000 * MIB},
        "memory": {"free": 5000 * MIB},
        "cores": {"usable": 4},
        "gpus": {"given": [], "visible": None, "there": []},
        "meeting": {"reached": [], "unreached": {}, "shared": None, "sharing_trouble": ""},
        **changes,
    }
