"""No process of a job imports a framework that the user's code does not: TensorFlow before PyTorch can end it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.interpreter import ROOT, fresh
from tests.launch import clusters

STAND_INS = ("tensorflow", "tf_keras", "keras", "jax", "lightning", "pytorch_lightning", "transformers", "mlflow")
RECORDS = """
import os, traceback
with open(os.environ["TEST_RECORD"], "a") as record:
    record.write(f"process {os.getpid()} imports " + __name__ + "\\n" + "".join(traceback.format_stack()) + "\\n")
raise ImportError("a stand-in of a test")
"""
# As Livy runs a cell: the functions have no module, and cloudpickle asks all modules for their names.
IN_A_CELL = "import sys\nexec(open(sys.argv[1]).read(), {})"

START = """
import os, sys, torch
from pathlib import Path
from spark_estimator import HorovodRunner
import spark_estimator, spark_estimator.estimators, spark_estimator.compat
spark_estimator.compat.install()

def train(folder=None):
    import horovod.torch as hvd
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    if folder:
        from spark_estimator.checkpoint import Checkpointer
        with Checkpointer(folder, model=model, optimizer=optimizer) as checkpointer:
            checkpointer.restore()
            checkpointer.step()
    model(torch.ones(3, 2)).mean().backward()
    optimizer.step()
    return hvd.allreduce(torch.ones(2)).tolist()
"""
PROGRAMS = {
    "processes of this host": START
    + """
assert HorovodRunner(np=-2).run(train, folder=str(Path(sys.argv[2], "run"))) == [1.0, 1.0]
assert spark_estimator.run(train, num_proc=1) == [[1.0, 1.0]]
assert spark_estimator.run(train, num_proc=1, min_num_proc=1) == [[1.0, 1.0]]

import subprocess
script = Path(sys.argv[2], "script.py")
script.write_text("import horovod.torch as hvd, torch; hvd.init(); assert hvd.allreduce(torch.ones(1)).item() == 1.0")
HorovodRunner(np=-1).run(str(script))
horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "1"]
subprocess.run([*horovodrun, sys.executable, str(script)], check=True, timeout=60)
""",
    "tasks of Spark": START
    + """
import spark_estimator.spark
from spark_estimator.torch_distributor import TorchDistributor
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([(float(i), 2.0 * i) for i in range(8)], "x double, y double")

def rows(data):
    return [len(y) for x, y in data.loader(batch_size=4, feature_cols=["x"], label_cols=["y"])]

assert HorovodRunner(np=2).run(train) == [1.0, 1.0]
assert HorovodRunner(np=2).run(rows, data=frame) == [4]
assert spark_estimator.spark.run(train, num_proc=1) == [[1.0, 1.0]]
assert spark_estimator.spark.run_elastic(train, num_proc=1) == [[1.0, 1.0]]
assert TorchDistributor(num_processes=1, local_mode=False, use_gpu=False).run(train) == [1.0, 1.0]
""",
    "an estimator": START
    + """
from spark_estimator import TorchEstimator, TorchModel
from pyspark.ml import Pipeline, PipelineModel
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.createDataFrame([(float(i), 2.0 * i) for i in range(8)], "x double, y double")

def loss(predicted, right):
    return torch.nn.functional.mse_loss(predicted, right)

net = torch.nn.Linear(1, 1)
estimator = TorchEstimator(
    model=net, optimizer=torch.optim.SGD(net.parameters(), 0.01), loss=loss, feature_cols=["x"], label_cols=["y"],
    num_proc=2, epochs=1, batch_size=2, verbose=0,
)
model = Pipeline(stages=[estimator]).fit(frame)
model.save(str(Path(sys.argv[2], "model")))
assert PipelineModel.load(str(Path(sys.argv[2], "model"))).transform(frame).count() == 8
assert len(model.stages[0].transform(frame).collect()) == 8
""",
}


def test_no_module_imports_for_a_name_that_it_does_not_have() -> None:
    """All are asked: by cloudpickle, also that of Spark, for a function without a module."""
    lazy = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "spark_estimator").rglob("*.py")
        # Those of TensorFlow import it at once.
        if "\ndef __getattr__(name" in path.read_text() and "tensorflow" not in path.parts
    ]
    assert "spark_estimator.keras" in lazy
    printed = fresh(
        f"""
        import importlib, sys
        import spark_estimator.compat, spark_estimator.estimators
        spark_estimator.compat.install()
        for name in {lazy}:
            importlib.import_module(name)
        import horovod, sparkdl
        before = set(sys.modules)
        for name in before:
            if name.startswith(("spark_estimator", "horovod", "sparkdl")):
                assert not hasattr(sys.modules[name], "train"), name
        assert "spark_estimator.estimators.keras_model" in before
        print(sorted(set(sys.modules) - before))
        """
    )
    assert printed == "[]"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_framework_is_imported_that_the_program_does_not(name: str, tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand_ins"
    for framework in STAND_INS:
        (stand_ins / framework).mkdir(parents=True)
        (stand_ins / framework / "__init__.py").write_text(RECORDS)
    cell, record = tmp_path / "cell.py", tmp_path / "record"
    cell.write_text(PROGRAMS[name])
    environment = clusters.environment(TEST_RECORD=str(record), PYSPARK_PYTHON=sys.executable)
    environment["PYTHONPATH"] = f"{stand_ins}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CELL, str(cell), str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    imports = record.read_text() if record.exists() else ""
    assert not imports, imports
    assert done.returncode == 0, done.stderr
