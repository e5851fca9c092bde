"""Tries the wheel without the engine on a machine where no rank can run: macOS, Windows. Nothing is left over.

``python check_client.py`` checks what needs no Spark. With the address of a Spark Connect server on Linux, which has
the wheel with the engine, ``python check_client.py sc://host:15002`` drives jobs on it, too. What is printed last, a
JSON object, is for docs/reference/compatibility.md.
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import torch

import spark_estimator
from spark_estimator import HorovodRunner, TorchEstimator, TorchModel
from spark_estimator.data.fields import Field
from spark_estimator.errors import NativeLibraryError, PreflightError, WorkerFailedError
from spark_estimator.posix import IS_WINDOWS
from spark_estimator.store import Store, replacement

QUESTION = pandas.DataFrame({"a": [0.5], "b": [0.1]})


def make_estimator(**more: Any) -> TorchEstimator:
    """The estimator of a small linear model."""
    torch.manual_seed(1)
    net = torch.nn.Linear(2, 1)
    return TorchEstimator(
        num_proc=2, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.2), loss=torch.nn.MSELoss(),
        feature_cols=["a", "b"], label_cols=["y"], batch_size=25, epochs=3, verbose=0, **more,
    )  # fmt: skip


def save_and_load(model: TorchModel, folder: Path) -> TorchModel:
    """Save a model twice, the second time over the first, load it, and compare what it predicts."""
    for _ in range(2):
        model.write().overwrite().save(folder.absolute().as_uri())
    again = TorchModel.load(folder.absolute().as_uri())
    net = model.getModel()
    assert abs(float(again.predict(QUESTION)[0][0]) - float(net(torch.tensor([[0.5, 0.1]])))) < 1e-5
    return again


def check_local_model(folder: Path) -> str:
    """Save, load and predict without a session."""
    field = Field(("a", "b"), ("c0", "c1"), (1, 1), "float32", (2,))
    columns = {"feature_columns": ["a", "b"], "label_columns": ["y"], "label_types": ["float"], "outputs": [1]}
    model = TorchModel(model=torch.nn.Linear(2, 1), inputs=[field], **columns)
    save_and_load(model, folder / "model of this machine")
    return "saved, loaded, and predicts"


def check_doctor(folder: Path) -> str:
    """Nothing is missing for a client."""
    from spark_estimator.doctor import Severity, examine

    findings = list(examine())
    missing = [str(each) for each in findings if each.state is Severity.MISSING]
    assert not missing, missing
    (engine,) = [each for each in findings if each.name == "engine"]
    assert engine.state is Severity.NOTE, engine
    return f"{len(findings)} findings, none missing"


def check_local_ranks(folder: Path) -> str:
    """Ranks of this machine are refused, by an error with the remedy."""
    try:
        HorovodRunner(np=-2).run(print)
    except NativeLibraryError as error:
        assert "py3-none-any" in str(error) and "SparkSession.builder.remote" in str(error), error
        return str(error)
    raise AssertionError("ranks have run on this machine")


def check_horovodrun(folder: Path) -> str:
    """So does ``horovodrun``."""
    from spark_estimator.launch.cli.main import main

    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        main(["-np", "2", "python", "train.py"])
    assert "No rank can run on " in output.getvalue(), output.getvalue()
    return "refused"


def check_files(folder: Path) -> str:
    """Files and folders are replaced whole."""
    store = Store.create(str(folder / "store"))
    for content in (b"one\n", b"two\n"):
        store.write(str(folder / "store" / "file"), content)
        assert store.read(str(folder / "store" / "file")) == content
    for text in ("first", "second"):
        with replacement.replace_folder(folder / "replaced", overwrite=True) as new:
            (new / "file").write_text(text)
        assert (folder / "replaced" / "file").read_text() == text
    left = sorted(path.name for path in folder.iterdir() if path.name.startswith("."))
    assert not left, left
    return "replaced, and nothing is left over"


def check_runner(spark: Any, folder: Path) -> str:
    """A function runs on two ranks, and their lines arrive."""

    def reduce(factor: float) -> Any:
        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        print("a line of rank", hvd.rank(), flush=True)
        return hvd.allreduce(torch.ones(2) * factor * (hvd.rank() + 1), op=hvd.Sum).tolist()

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert HorovodRunner(np=2, driver_log_verbosity="all").run(reduce, 2.0) == [6.0, 6.0]
    assert all(f"a line of rank {rank}" in output.getvalue() for rank in (0, 1)), output.getvalue()
    return "[6.0, 6.0]"


def check_failure(spark: Any, folder: Path) -> str:
    """A rank that is killed has its signal's name, which this system may not know."""
    number = 9

    def die() -> None:
        import os

        import spark_estimator.torch as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), number)
        hvd.barrier()

    try:
        HorovodRunner(np=2).run(die)
    except WorkerFailedError as error:
        assert "rank 1 " in str(error) and "signal 9 (SIGKILL)" in str(error), error
        return str(error).split(";")[0]
    raise AssertionError("the job did not fail")


def check_script(spark: Any, folder: Path) -> str:
    """``horovodrun --spark`` runs a script on the server."""
    from spark_estimator.launch.cli.main import main

    script = folder / "script.py"
    line = "print('script on rank', hvd.rank(), 'of', hvd.size())"
    script.write_text(f"import horovod.torch as hvd\nhvd.init()\n{line}\n")
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
        main(["--spark", "--remote", sys.argv[1], "-np", "2", "python", str(script)])
    assert all(f"script on rank {rank} of 2" in output.getvalue() for rank in (0, 1)), output.getvalue()
    return "two ranks"


def check_fit(spark: Any, folder: Path) -> str:
    """Fit, transform, save, load, transform again."""
    frame = spark.range(0, 400, 1, 2).selectExpr("id / 400 AS a", "id % 7 / 7 AS b").selectExpr("*", "a * 2 - b AS y")
    model = make_estimator().fit(frame)
    again = save_and_load(model, folder / "trained")
    assert len(model.getHistory()) == 3
    assert again.transform(frame).exceptAll(model.transform(frame)).count() == 0
    return f"loss {model.getHistory()[-1]['train']['loss']:.3g}"


def check_cluster(spark: Any, folder: Path) -> str:
    """`doctor.cluster` finds nothing missing on the server."""
    from spark_estimator.doctor import Severity, cluster

    findings = cluster(spark)
    missing = [str(each) for each in findings if each.state is Severity.MISSING]
    assert not missing, missing
    return f"{len(findings)} findings, none missing"


def check_store(spark: Any, folder: Path) -> str:
    """Windows refuses a store on its own disk, which no rank has."""
    if not IS_WINDOWS:
        return "not checked: only on Windows are paths of another kind than the ranks'"
    frame = spark.range(40).selectExpr("id / 40 AS a", "id % 7 / 7 AS b", "id / 7 AS y")
    try:
        make_estimator(store=Store.create(str(folder / "store")), run_id="r").fit(frame)
    except PreflightError as error:
        assert "of this Windows machine" in str(error), error
        return "refused"
    raise AssertionError("a store on this disk was taken")


HERE: dict[str, Callable[[Path], str]] = {
    "model": check_local_model,
    "doctor": check_doctor,
    "local ranks": check_local_ranks,
    "horovodrun": check_horovodrun,
    "files": check_files,
}
ON_SPARK: dict[str, Callable[[Any, Path], str]] = {
    "runner": check_runner,
    "failure": check_failure,
    "script": check_script,
    "fit": check_fit,
    "cluster": check_cluster,
    "store": check_store,
}


def main() -> int:
    """Run all checks; return 0 if each succeeded."""
    report: dict[str, Any] = {
        "spark_estimator": spark_estimator.__version__,
        "from": str(Path(spark_estimator.__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
        "checks": {},
    }
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        checks: dict[str, Callable[[], str]] = {key: lambda call=call: call(Path(name)) for key, call in HERE.items()}  # type: ignore[misc]
        if len(sys.argv) > 1:
            from pyspark.sql import SparkSession

            spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
            stack.callback(spark.stop)
            checks |= {key: lambda call=call: call(spark, Path(name)) for key, call in ON_SPARK.items()}  # type: ignore[misc]
        for key, check in checks.items():
            try:
                outcome = {"ok": True, "text": check()}
            except Exception as error:
                traceback.print_exc()
                outcome = {"ok": False, "text": f"{type(error).__name__}: {error}"[:2000]}
            report["checks"][key] = outcome
            print(f"{'ok' if outcome['ok'] else 'FAILED':>6}  {key}: {outcome['text']}", flush=True)
    print(json.dumps(report, indent=2), flush=True)
    return 0 if all(check["ok"] for check in report["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
