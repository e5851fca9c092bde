"""What editors, `inspect` and type checkers see of estimators and models: every parameter, with its type."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import TorchEstimator, compat
from tools.generate_keywords import COMMAND, FOLDER, MODULES, ROOT, Module, shorten, write_source

CLASSES = (
    "spark_estimator.TorchEstimator",
    "spark_estimator.TorchModel",
    "spark_estimator.KerasEstimator",
    "spark_estimator.KerasModel",
    "horovod.spark.torch.TorchEstimator",
    "horovod.spark.torch.TorchModel",
    "horovod.spark.keras.KerasEstimator",
    "horovod.spark.keras.KerasModel",
    "horovod.spark.lightning.TorchEstimator",
    "horovod.spark.lightning.TorchModel",
)


@pytest.fixture(params=CLASSES)
def cls(request: pytest.FixtureRequest) -> Any:
    module, _, name = request.param.rpartition(".")
    if module.startswith("horovod"):
        compat.install()
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.path)
def test_the_modules_are_current(module: Module) -> None:
    assert (FOLDER / module.path).read_text(encoding="utf-8") == write_source(module), f"run {COMMAND}"


@pytest.mark.parametrize("method", [None, "setParams"])
def test_the_signature_has_every_parameter(cls: Any, method: str | None) -> None:
    parameters = dict(inspect.signature(cls if method is None else getattr(cls, method)).parameters)
    parameters.pop("self", None)
    for row in cls._rows:
        default = None if row.name == "history" else row.default
        assert parameters[row.name].default == default and parameters[row.name].annotation == row.type
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())
    if "Model" in cls.__name__ and method is None:
        assert list(parameters)[:4] == ["inputs", "outputs", "label_types", "output_kinds"]


def test_every_listed_parameter_has_a_setter_and_a_getter(cls: Any) -> None:
    others = {"model": None, "inputs": (), "outputs": (), "label_types": ()} if "Model" in cls.__name__ else {}
    instance = cls(**others)
    listed = re.findall(r"^(\w+): ", instance.explainParams(), re.MULTILINE)
    assert listed == sorted([*(row.name for row in cls._rows), *cls._ineffective])
    for row in cls._rows:
        setter, getter = getattr(cls, f"set{row.camel}"), getattr(cls, f"get{row.camel}")
        if row.name in ("model", "custom_objects") and "Model" in cls.__name__:
            continue  # a framework's model checks their types, or adds to them
        assert setter.__annotations__ == {"value": row.type, "return": "Self"}
        assert getter.__annotations__ == {"return": row.returns or row.type}
        value = {"num_gpus": 1}.get(row.name, getter(instance))
        assert setter(instance, value) is instance
        assert instance.isSet(row.name) and getter(instance) == value
        assert setter.__doc__ == shorten(f"Set {row.name}: {row.doc}")
        assert getter.__doc__ == shorten(f"Return {row.name}: {row.doc}")


def test_a_subclass_may_have_a_constructor_of_its_own(cls: Any) -> None:
    class Mine(cls):
        def __init__(self, size: int, **keywords: Any) -> None:
            super().__init__(**keywords)
            self.size = size

    others = {"model": None, "inputs": (), "outputs": (), "label_types": ()} if "Model" in cls.__name__ else {}
    mine = Mine(3, batch_size=5, **others)
    assert (mine.size, mine.getBatchSize(), mine.setBatchSize(6).getBatchSize()) == (3, 5, 6)
    assert [mine.isSet(name) for name in ("batch_size", "output_cols")] == [True, False]
    assert list(inspect.signature(Mine).parameters) == ["size", "keywords"]
    assert mine.setParams(batch_size=7) is mine and mine.copy().getBatchSize() == 7
    with pytest.raises(TypeError, match=r"Mine has no parameter 'batchsize' \(did you mean 'batch_size'\?\)"):
        Mine(3, batchsize=5, **others)
    with pytest.raises(TypeError, match="Mine takes keyword arguments only"):
        mine.setParams(7)


def test_a_notebook_completes_a_parameter() -> None:
    """jedi is what IPython asks; it does not know PEP 692, and reads the signatures of objects."""
    jedi = pytest.importorskip("jedi")
    known = {"TorchEstimator": TorchEstimator, "estimator": TorchEstimator()}
    for call in ("TorchEstimator(", "estimator.setParams("):
        completions = jedi.Interpreter(f"{call}num_p", [known]).complete()
        assert [completion.name for completion in completions] == ["num_proc="]


PROGRAM = """
from pyspark.sql import DataFrame, SparkSession
import torch
from spark_estimator import KerasEstimator, KerasModel, TorchEstimator, TorchModel
from spark_estimator.lightning import TorchEstimator as LightningEstimator

net = torch.nn.Linear(2, 1)
df: DataFrame = SparkSession.builder.getOrCreate().range(3)
est = TorchEstimator(model=net, optimizer=torch.optim.SGD(net.parameters(), 0.1), loss=torch.nn.MSELoss(), epochs=2)
reveal_type(est.setEpochs(3).setBatchSize(8).fit(df))
reveal_type(est.setParams(epochs=3, nulls=0.5).getFeatureCols())
reveal_type(est.epochs)
reveal_type(KerasEstimator(loss="mse", validation=0.25).setBackendEnv({"A": "1"}).fit(df).getHistory())
reveal_type(LightningEstimator(scale_lr=False).fit(df).setOutputCols(["p"]).getHistory())


class Mine(TorchEstimator):
    def __init__(self, size: int, **keywords: object) -> None:
        super().__init__(batch_size=size)


reveal_type(Mine(3).setEpochs(2))
"""
REVEALED = (
    "spark_estimator.estimators.torch.model.TorchModel",
    "list[str] | None",
    "pyspark.ml.param.Param[int]",
    "spark_estimator.estimators.keras.history.KerasHistory",
    "spark_estimator.estimators.history.History",
    "Mine",
)
WRONG = {
    "TorchEstimator(epoch=3)": "call-arg",
    "TorchEstimator(epochs='3')": "arg-type",
    "TorchEstimator(net)": "call-arg",
    "est.setEpochs('3')": "arg-type",
    "est.setFeatureCols(3)": "arg-type",
    "est.setEpoch(3)": "attr-defined",
    "est.setParams(batch_size=None)": "arg-type",
    "TorchEstimator(model=KerasModel)": "arg-type",
    "KerasEstimator(mixed_precision='bf16')": "call-arg",
    "LightningEstimator(learning_rate=0.1)": "call-arg",
    "number: int = est.getLearningRate()": "assignment",
    "TorchModel(models=net)": "call-arg",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_checks_a_users_program(tmp_path: Path) -> None:
    """The package is where mypy finds installed ones, which it reads for ``py.typed`` alone."""
    first_wrong = PROGRAM.count("\n") + 1
    (tmp_path / "program.py").write_text(PROGRAM + "\n".join(WRONG) + "\n", encoding="utf-8")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "spark_estimator").symlink_to(ROOT / "spark_estimator")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "MYPY_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert not done.stderr, done.stderr
    assert tuple(re.findall(r'Revealed type is "(?:program\.)?(.*)"', done.stdout)) == REVEALED
    errors = re.findall(r"^program\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    assert dict(errors) == {str(first_wrong + at): code for at, code in enumerate(WRONG.values())}, done.stdout
