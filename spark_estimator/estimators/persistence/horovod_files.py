"""Models and estimators that Horovod has saved: JSON in ``metadata``, whose values are pickles in base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.folders import is_trusted

_PREFIX = "horovod.spark."


@dataclass(frozen=True)
class HorovodFile:
    """A folder that Horovod has saved.

    Attributes:
        folder: which holds it.
        kind: Horovod's class, dotted.
        uid: of the model or estimator.
        encoded: [parameters] pickles in base64; None: the parameter was None. Those that were set, and defaults.
    """

    folder: Path
    kind: str
    uid: str
    encoded: Mapping[str, str | None]

    @classmethod
    def read(cls, folder: Path) -> HorovodFile | None:
        """Return the content of a folder; None: nothing of Horovod's."""
        metadata = folder / "metadata"
        parts = sorted(metadata.glob("part-*")) if metadata.is_dir() else [metadata]
        try:
            content = json.loads(parts[0].read_text(encoding="utf-8"))
            if not content["class"].startswith(_PREFIX) or "defaultParamMap" not in content:
                return None
            params = {**content["defaultParamMap"], **content["paramMap"]}
            return cls(folder, content["class"], content["uid"], params)
        except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
            return None

    def load_values(self, kind: str, *, trust: bool) -> dict[str, Any]:
        """Return the parameters that are not None, by name. A model of TorchScript is a stream.

        Args:
            kind: the class that is to be loaded, without its module.
            trust: pickles are opened, which can run any code.

        Raises:
            DataError: it is of another class, it is not trusted, or a value can't be opened.
        """
        if self.kind.rpartition(".")[2] != kind:
            raise DataError(f"{self.folder} holds a {self.kind}, not a {kind}.")
        if not is_trusted(trust):
            raise DataError(
                f"{self.folder} was saved by Horovod, as pickles, which can run any code when they are opened. Pass "
                "trust=True (in a pipeline: use trust_files()) if you trust the folder."
            )
        return {name: self._load_value(name, text) for name, text in self.encoded.items() if text is not None}

    def _load_value(self, name: str, text: str) -> Any:
        try:
            return cloudpickle.loads(base64.b64decode(text))
        except Exception as error:
            hint = ""
            if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("horovod"):
                hint = " Call spark_estimator.compat.install() first: it provides the modules of Horovod."
            raise DataError(
                f"{self.folder}: the parameter {name!r} can't be opened: {type(error).__name__}: {error}.{hint}"
            ) from error
