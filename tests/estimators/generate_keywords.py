"""Writes the ``keywords`` modules: constructors, setters and getters of estimators and models, from their tables.

``python -m tests.estimators.generate_keywords`` after a change of a table; `test_keywords` holds the modules to them.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_estimator.estimators import params
from spark_estimator.estimators.keras import params as keras_params
from spark_estimator.estimators.lightning import params as lightning_params
from spark_estimator.estimators.params import Row
from spark_estimator.estimators.torch import params as torch_params
from spark_estimator.estimators.transformers import params as transformers_params

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "spark_estimator" / "estimators"
COMMAND = "python -m tests.estimators.generate_keywords"


@dataclass(frozen=True)
class Class:
    """One generated class.

    Attributes:
        name: of the class.
        bases: classes with accessors.
        rows: all parameters.
        doc: of the class.
        constructs: it has a constructor and setParams, too.
        others: the constructor's keywords that are no parameters, as source.
    """

    name: str
    bases: tuple[str, ...]
    rows: Sequence[Row]
    doc: str
    constructs: bool = True
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """One generated module.

    Attributes:
        path: below the estimators' folder.
        doc: its first sentence.
        classes: in it.
        imports: lines for the type checker alone.
        needs: lines that the code needs.
    """

    path: str
    doc: str
    classes: tuple[Class, ...]
    imports: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())


_COLLECTIONS = "from collections.abc import Callable, Mapping, Sequence"
_BACKEND = "from spark_estimator.spark.backend import Backend"
_STORE = "from spark_estimator.store import Store"
_HISTORY = "from spark_estimator.estimators.history import History"
_FIELD = "from spark_estimator.data.fields import Field"
_KIND = "from spark_estimator.estimators.inference.prediction_columns import OutputKind"
_TORCH = ("import torch", "from torch import nn", "from torch.optim.lr_scheduler import LRScheduler")
_SHARED = "from spark_estimator.estimators.keywords import PredictingKeywords, SharedKeywords"
_OF_MODELS = (
    "inputs: Sequence[Field] | None = None",
    "outputs: Sequence[int] | None = None",
    "label_types: Sequence[str] | None = None",
    "output_kinds: Sequence[OutputKind] | None = None",
)

MODULES = (
    Module(
        "keywords.py",
        "Setters and getters of the parameters that estimators and models share.",
        (
            Class("SharedKeywords", ("TableParams",), params.SHARED, "Parameters of every estimator.", False),
            Class(
                "PredictingKeywords",
                ("TableParams",),
                params.PREDICTING,
                "Parameters of estimators and models that say which columns `transform` adds.",
                False,
            ),
            Class(
                "ModelKeywords",
                ("PredictingKeywords",),
                params.MODEL,
                "Parameters of every trained model.",
                False,
            ),
        ),
        (_BACKEND, _STORE),
        ("from spark_estimator.estimators.params import TableParams",),
    ),
    Module(
        "torch/keywords.py",
        "Constructors, setters and getters of `TorchEstimator` and `TorchModel`.",
        (
            Class(
                "TorchEstimatorKeywords",
                ("SharedKeywords", "PredictingKeywords"),
                torch_params.ESTIMATOR,
                "Constructor, setters and getters of `TorchEstimator`.",
            ),
            Class(
                "TorchModelKeywords",
                ("ModelKeywords",),
                torch_params.MODEL,
                "Constructor, setters and getters of `TorchModel`.",
                others=_OF_MODELS,
            ),
        ),
        (_BACKEND, _STORE, _FIELD, _HISTORY, _KIND, *_TORCH),
        ("from spark_estimator.estimators.keywords import ModelKeywords, PredictingKeywords, SharedKeywords",),
    ),
    Module(
        "lightning/keywords.py",
        "Constructor, setters and getters of Lightning's `TorchEstimator`.",
        (
            Class(
                "LightningEstimatorKeywords",
                ("SharedKeywords", "PredictingKeywords"),
                lightning_params.ESTIMATOR,
                "Constructor, setters and getters of Lightning's `TorchEstimator`.",
            ),
        ),
        (_BACKEND, _STORE, *_TORCH),
        (_SHARED,),
    ),
    Module(
        "transformers/keywords.py",
        "Constructors, setters and getters of `TransformersEstimator` and `TransformersModel`.",
        (
            Class(
                "TransformersEstimatorKeywords",
                ("PredictingKeywords",),
                transformers_params.ESTIMATOR,
                "Constructor, setters and getters of `TransformersEstimator`.",
            ),
            Class(
                "TransformersModelKeywords",
                ("PredictingKeywords",),
                transformers_params.MODEL,
                "Constructor, setters and getters of `TransformersModel`.",
            ),
        ),
        (_BACKEND, _STORE, _HISTORY, *_TORCH),
        ("from spark_estimator.estimators.keywords import PredictingKeywords",),
    ),
    Module(
        "keras/keywords.py",
        "Constructors, setters and getters of `KerasEstimator` and `KerasModel`.",
        (
            Class(
                "KerasEstimatorKeywords",
                ("SharedKeywords", "PredictingKeywords"),
                keras_params.ESTIMATOR,
                "Constructor, setters and getters of `KerasEstimator`.",
            ),
            Class(
                "KerasModelKeywords",
                ("ModelKeywords",),
                keras_params.MODEL,
                "Constructor, setters and getters of `KerasModel`.",
                others=_OF_MODELS,
            ),
        ),
        (_BACKEND, _STORE, _FIELD, _KIND, "from spark_estimator.estimators.keras.history import KerasHistory"),
        ("from spark_estimator.estimators.keywords import ModelKeywords, PredictingKeywords, SharedKeywords",),
    ),
)
#: The rows whose setters and getters a base class has.
_INHERITED: dict[str, Sequence[Row]] = {
    "TableParams": (),
    "SharedKeywords": params.SHARED,
    "PredictingKeywords": params.PREDICTING,
    "ModelKeywords": params.MODEL,
}


def source_of(module: Module) -> str:
    """The module's text, formatted."""
    needs = list(module.needs)
    if any(spec.constructs for spec in module.classes) and not any("by_keyword" in line for line in needs):
        needs.append("from spark_estimator.estimators.params import by_keyword")
    imports = "\n".join(f"    {line}" for line in (_COLLECTIONS, *module.imports))
    text = f'''"""{module.doc}

Generated from the tables of parameters by ``{COMMAND}``: change those.
"""

# ruff: noqa: B006, F401

from __future__ import annotations

from typing import TYPE_CHECKING, Any

{chr(10).join(needs)}

if TYPE_CHECKING:
{imports}
    from pyspark.ml.param import Param
    from typing_extensions import Self


''' + "\n\n".join(map(_class, module.classes))
    for command in (["check", "--select=F401,I", "--fix", "--ignore-noqa", "--silent"], ["format"]):
        text = _ruff(command, text, FOLDER / module.path)
    return text.replace("# ruff: noqa: B006, F401\n\n", "# ruff: noqa: B006\n\n" if " = []," in text else "", 1)


def _ruff(command: list[str], text: str, path: Path) -> str:
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


def _class(spec: Class) -> str:
    inherited = {id(row) for base in spec.bases for row in _INHERITED[base]}
    rows = [row for row in spec.rows if id(row) not in inherited]
    lines = [f"class {spec.name}({', '.join(spec.bases)}):", f'    """{spec.doc}"""', ""]
    lines += [f"    {row.name}: Param[{row.returns or row.type}]" for row in rows]
    if spec.constructs:
        keywords = [f"{row.name}: {row.type} = {_default(row)}" for row in spec.rows]
        lines += _constructing("__init__", [*spec.others, *keywords], "None", "super().__init__(**self._call_keywords)")
        lines += _constructing("setParams", keywords, "Self", "return self._take(self._call_keywords)")
    for row in rows:
        lines += [
            "",
            f"    def set{row.camel}(self, value: {row.type}) -> Self:",
            *_docstring(f"Sets {row.name}: {row.doc}. Returns self."),
            f"        return self._set({row.name}=value)",
            "",
            f"    def get{row.camel}(self) -> {row.returns or row.type}:",
            *_docstring(f"{row.name}: {row.doc}."),
            f"        return self._get(self.{row.name})",
        ]
    return "\n".join(lines) + "\n"


def _constructing(name: str, keywords: Sequence[str], returns: str, body: str) -> list[str]:
    docs = [] if name == "__init__" else ['        """Sets any of the parameters. Returns self."""']
    return [
        "",
        "    @by_keyword",
        f"    def {name}(",
        "        self,",
        "        *,",
        *(f"        {keyword}," for keyword in keywords),
        f"    ) -> {returns}:",
        *docs,
        f"        {body}",
    ]


def _default(row: Row) -> str:
    return "None" if row.name == "history" else repr(row.default).replace("'", '"')


def _docstring(text: str) -> list[str]:
    lines = textwrap.wrap(text, 120 - 8 - 6)
    if len(lines) == 1:
        return [f'        """{lines[0]}"""']
    return [f'        """{lines[0]}', *(f"        {line}" for line in lines[1:]), '        """']


if __name__ == "__main__":
    for module in MODULES:
        (FOLDER / module.path).write_text(source_of(module), encoding="utf-8")
        print(FOLDER / module.path)
