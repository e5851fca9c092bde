"""Write the ``keywords`` modules: the parameters of estimators and models, as type checkers and editors read them.

A `TypedDict` names each parameter once, for the constructor and ``setParams`` (PEP 692). Run
``python -m tools.generate_keywords`` after a change of a table; `tests/estimators/test_keywords.py` compares the
modules with their tables.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_estimator.estimators import params
from spark_estimator.estimators.keras import params as keras_params
from spark_estimator.estimators.lightning import params as lightning_params
from spark_estimator.estimators.params import Row
from spark_estimator.estimators.torch import params as torch_params
from spark_estimator.extensions.transformers import params as transformers_params

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "spark_estimator"
COMMAND = "python -m tools.generate_keywords"
_WIDTH = 120


@dataclass(frozen=True)
class Class:
    """One generated class, and the `TypedDict` of its parameters.

    Attributes:
        name: what is described: with ``Keywords`` it is the class's name, with ``Arguments`` the dict's.
        bases: the same of the base classes, whose rows it inherits.
        rows: all parameters.
        doc: whose parameters these are.
        constructs: it has a constructor and setParams, too.
        has_parts: the constructor also takes a model's `ModelParts`.
    """

    name: str
    bases: tuple[str, ...]
    rows: Sequence[Row]
    doc: str
    constructs: bool = True
    has_parts: bool = False


@dataclass(frozen=True)
class Module:
    """One generated module.

    Attributes:
        path: below the package's folder.
        doc: its first sentence.
        classes: in it.
        types: imports for the type checker, as source.
    """

    path: str
    doc: str
    classes: tuple[Class, ...]
    types: tuple[str, ...]


_KERAS_OR_TORCH = (torch_params.ESTIMATOR, lightning_params.ESTIMATOR, keras_params.ESTIMATOR)


def _find_common(*tables: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that all of these tables have, in the first one's order."""
    others = [{id(row) for row in table} for table in tables[1:]]
    return tuple(row for row in tables[0] if all(id(row) in known for known in others))


_COMMON = _find_common(params.SHARED, *_KERAS_OR_TORCH, transformers_params.ESTIMATOR)
_SHARED = _find_common(params.SHARED, *_KERAS_OR_TORCH)
_TORCH_SHARED = _find_common(torch_params.ESTIMATOR, lightning_params.ESTIMATOR)
_STORE = ("from spark_estimator.spark.backend import Backend", "from spark_estimator.store import Store")
_HISTORY = "from spark_estimator.estimators.history import History"
_PARTS = (
    "from spark_estimator.data.fields import Field",
    "from spark_estimator.estimators.inference.prediction_columns import OutputKind",
)
_TORCH = ("import torch", "from torch import nn", "from torch.optim.lr_scheduler import LRScheduler")

MODULES = (
    Module(
        "estimators/keywords.py",
        "Parameters that estimators and models share.",
        (
            Class("Common", (), _COMMON, "every estimator", False),
            Class("Shared", ("Common",), _SHARED, "every estimator of columns of numbers", False),
            Class("Predicting", (), params.PREDICTING, "the columns that `transform` adds", False),
            Class("Inference", (), params.INFERENCE, "where and how PyTorch predicts", False),
            Class("Recipe", (), torch_params.RECIPE, "how PyTorch makes a step", False),
            Class("Model", ("Predicting",), params.MODEL, "every trained model of columns of numbers", False),
        ),
        (*_STORE, *_PARTS),
    ),
    Module(
        "estimators/torch/keywords.py",
        "Parameters of `TorchEstimator` and `TorchModel`.",
        (
            Class(
                "TorchShared",
                ("Shared", "Predicting", "Inference"),
                _TORCH_SHARED,
                "estimators of PyTorch and Lightning",
                False,
            ),
            Class("TorchEstimator", ("TorchShared", "Recipe"), torch_params.ESTIMATOR, "`TorchEstimator`"),
            Class("TorchModel", ("Model", "Inference"), torch_params.MODEL, "`TorchModel`", has_parts=True),
        ),
        (_HISTORY, *_TORCH),
    ),
    Module(
        "estimators/lightning/keywords.py",
        "Parameters of Lightning's `TorchEstimator`.",
        (Class("LightningEstimator", ("TorchShared",), lightning_params.ESTIMATOR, "Lightning's `TorchEstimator`"),),
        _TORCH,
    ),
    Module(
        "extensions/transformers/keywords.py",
        "Parameters of `TransformersEstimator` and `TransformersModel`.",
        (
            Class(
                "TransformersEstimator",
                ("Common", "Predicting", "Inference", "Recipe"),
                transformers_params.ESTIMATOR,
                "`TransformersEstimator`",
            ),
            Class("TransformersModel", ("Predicting", "Inference"), transformers_params.MODEL, "`TransformersModel`"),
        ),
        (_HISTORY, *_TORCH),
    ),
    Module(
        "estimators/keras/keywords.py",
        "Parameters of `KerasEstimator` and `KerasModel`.",
        (
            Class("KerasEstimator", ("Shared", "Predicting"), keras_params.ESTIMATOR, "`KerasEstimator`"),
            Class("KerasModel", ("Model",), keras_params.MODEL, "`KerasModel`", has_parts=True),
        ),
        ("from spark_estimator.estimators.keras.history import KerasHistory",),
    ),
)
_CLASSES = {spec.name: (module, spec) for module in MODULES for spec in module.classes}


def write_source(module: Module) -> str:
    """Return the module's text, formatted."""
    bases = sorted({base for spec in module.classes for base in spec.bases if _CLASSES[base][0] is not module})
    needs = [f"from {_dotted(_CLASSES[base][0])} import {base}Keywords, {base}Arguments" for base in bases]
    if any(spec.has_parts for spec in module.classes):
        needs.append("from spark_estimator.estimators.keywords import ModelParts")
    if any(not spec.bases for spec in module.classes):
        needs.append("from spark_estimator.estimators.params import TableParams")
        needs.append("from typing import TypedDict")
    types = "\n".join(f"    {line}" for line in module.types)
    text = f'''"""{module.doc}

Generated from the tables of parameters by ``{COMMAND}``: change those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

{chr(10).join(needs)}

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
{types}
    from pyspark.ml.param import Param
    from typing_extensions import Self, Unpack


''' + "\n\n".join(map(_write_class, module.classes))
    if module is MODULES[0]:
        text += "\n\n" + _write_dict("ModelParts", "", "A model's other keywords.", params.MODEL_PARTS)
    for command in (["check", "--select=F401,I", "--fix", "--ignore-noqa", "--silent"], ["format"]):
        text = _run_ruff(command, text, FOLDER / module.path)
    return text


def _dotted(module: Module) -> str:
    return "spark_estimator." + module.path.removesuffix(".py").replace("/", ".")


def _run_ruff(command: list[str], text: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout, done.stderr
    return done.stdout


def find_new_rows(spec: Class) -> list[Row]:
    """Return the rows that no base class has."""
    inherited = {id(row) for base in spec.bases for row in _CLASSES[base][1].rows}
    return [row for row in spec.rows if id(row) not in inherited]


def _write_dict(name: str, bases: str, doc: str, types: Mapping[str, str]) -> str:
    lines = [f"class {name}({bases or 'TypedDict'}, total=False):", f'    """{doc}"""', ""]
    return "\n".join([*lines, *(f"    {key}: {value}" for key, value in types.items())]) + "\n"


def _write_class(spec: Class) -> str:
    rows = find_new_rows(spec)
    bases = [f"{base}Arguments" for base in spec.bases]
    arguments = f"{spec.name}Arguments"
    text = _write_dict(
        arguments, ", ".join(bases), f"Types of the parameters of {spec.doc}.", {r.name: r.type for r in rows}
    )
    if spec.has_parts:
        text += f'''

class _{spec.name}Init({arguments}, ModelParts, total=False):
    """Types of the constructor's keywords."""
'''
    names = ", ".join(f"{base}Keywords" for base in spec.bases) or "TableParams"
    lines = ["", "", f"class {spec.name}Keywords({names}):", f'    """Parameters of {spec.doc}."""', ""]
    lines += [f"    {row.name}: Param[{row.returns or row.type}]" for row in rows]
    if spec.constructs:
        taken = f"_{spec.name}Init" if spec.has_parts else arguments
        lines += [
            "",
            f"    def __init__(self, **params: Unpack[{taken}]) -> None:",
            "        super().__init__(**params)",
            "",
            f"    def setParams(self, **params: Unpack[{arguments}]) -> Self:",
            '        """Set any of the parameters. Returns self."""',
            "        return self._take(params)",
        ]
    for row in rows:
        lines += [
            "",
            f"    def set{row.camel}(self, value: {row.type}) -> Self:",
            f'        """{shorten(f"Set {row.name}: {row.doc}")}"""',
            f"        return self._set({row.name}=value)",
            "",
            f"    def get{row.camel}(self) -> {row.returns or row.type}:",
            f'        """{shorten(f"Return {row.name}: {row.doc}")}"""',
            f"        return self._get(self.{row.name})",
        ]
    return text + "\n".join(lines) + "\n"


def shorten(text: str) -> str:
    """Return a sentence that fits into one line of documentation: the text, or its beginning."""
    room = _WIDTH - 8 - len('"""' * 2) - len(".")
    for end in (None, text.find("; ")):
        if len(text[:end]) <= room and end != -1:
            return f"{text[:end]}."
    return textwrap.shorten(text, room, placeholder=" ...")


if __name__ == "__main__":
    for module in MODULES:
        (FOLDER / module.path).write_text(write_source(module), encoding="utf-8")
        print(FOLDER / module.path)
