"""Tries the package on a platform that needs an account: Databricks, EMR, Dataproc, GKE. Nothing is left over.

Install the wheel there and run this file: in a notebook by ``%run`` or as a cell, elsewhere by ``spark-submit
check_platform.py`` with the platform's page in docs/how-to/install. What it prints last, a JSON object, is for
docs/reference/compatibility.md: versions, and of each check the outcome, the seconds and the error.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

RANKS = 2
SCRIPT = """
import torch
import horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)
assert hvd.size() == 2 and total.item() == 3.0
"""


def check_preflight(spark: SparkSession) -> str:
    """Run `doctor.cluster`: every executor, and every pair of them."""
    from spark_estimator.doctor import Severity, cluster

    findings = cluster(spark)
    missing = [str(finding) for finding in findings if finding.state is Severity.MISSING]
    assert not missing, "; ".join(missing)
    return f"{len(findings)} findings, none missing"


def check_runner(spark: SparkSession) -> str:
    """Run a function on two ranks, and return its value."""
    from spark_estimator import HorovodRunner

    def train(factor: float) -> list[Any]:
        import socket

        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        total = hvd.allreduce(torch.ones(1_000_000) * factor * (hvd.rank() + 1), op=hvd.Sum)
        assert torch.equal(total, torch.full((1_000_000,), 3 * factor))
        return hvd.allgather_object(socket.gethostname())

    return f"ranks on {', '.join(HorovodRunner(np=RANKS, driver_log_verbosity='all').run(train, factor=2.0))}"


def check_failure(spark: SparkSession) -> str:
    """Fail on rank 1, and have the error name it."""
    from spark_estimator import HorovodRunner
    from spark_estimator.errors import WorkerFailedError

    def fail() -> None:
        import spark_estimator.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("on purpose")
        hvd.barrier()

    try:
        HorovodRunner(np=RANKS).run(fail)
    except WorkerFailedError as error:
        assert "rank 1" in str(error) and "on purpose" in str(error), error
        return str(error).split("\n")[0]
    raise AssertionError("the job did not fail")


def check_estimator(spark: SparkSession) -> str:
    """Fit a small model on a DataFrame, and predict."""
    import torch
    from pyspark.sql import functions

    from spark_estimator import TorchEstimator

    frame = spark.range(2000).select((functions.rand(1) * 2 - 1).alias("x"))
    frame = frame.withColumn("y", functions.col("x") * 2 + 1)
    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    trained = TorchEstimator(
        num_proc=RANKS, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.2), loss=torch.nn.MSELoss(),
        feature_cols=["x"], label_cols=["y"], epochs=5, random_seed=1,
    ).fit(frame)  # fmt: skip
    column = trained.getOutputCols()[0]
    (row,) = trained.transform(frame).select(functions.max(functions.abs(functions.col(column) - frame.y))).collect()
    assert row[0] < 0.1, row
    return f"largest error {row[0]:.2g}"


def check_script(spark: SparkSession) -> str:
    """Run a Horovod script by `horovodrun` on the driver's host."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2", sys.executable, str(script)]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert answer.returncode == 0, (answer.stdout + answer.stderr)[-1000:]
    return "two ranks on the driver's host"


def check_gpus(spark: SparkSession) -> str:
    """Reduce a tensor on the ranks' GPUs, each on its own."""
    from spark_estimator import HorovodRunner

    def reduce() -> list[str]:
        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        if not torch.cuda.is_available():
            return hvd.allgather_object("no GPU")
        total = hvd.allreduce(torch.ones(1_000_000, device="cuda"), op=hvd.Sum)
        assert float(total[0]) == hvd.size()
        return hvd.allgather_object(torch.cuda.get_device_name())

    return ", ".join(HorovodRunner(np=RANKS).run(reduce))


CHECKS: dict[str, Callable[[SparkSession], str]] = {
    "preflight": check_preflight,
    "runner": check_runner,
    "failure": check_failure,
    "estimator": check_estimator,
    "script": check_script,
    "gpus": check_gpus,
}


def main() -> int:
    """Run all checks; return 0 if each succeeded."""
    import torch

    import spark_estimator

    spark = SparkSession.builder.appName("spark_estimator: check of a platform").getOrCreate()
    report: dict[str, Any] = {
        "spark_estimator": spark_estimator.__version__,
        "spark": spark.version,
        "connect": type(spark).__module__.startswith("pyspark.sql.connect"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
        "checks": {},
    }
    for name, check in CHECKS.items():
        began = time.monotonic()
        try:
            outcome = {"ok": True, "text": check(spark)}
        except Exception as error:
            outcome = {"ok": False, "text": f"{type(error).__name__}: {error}"[:2000]}
        report["checks"][name] = {**outcome, "seconds": round(time.monotonic() - began, 1)}
        print(f"{'ok' if outcome['ok'] else 'FAILED':>6}  {name}: {outcome['text']}", flush=True)
    print(json.dumps(report, indent=2), flush=True)
    return 0 if all(check["ok"] for check in report["checks"].values()) else 1


if __name__ == "__main__":
    status = main()
    if status:  # a notebook shows SystemExit as an error
        sys.exit(status)
