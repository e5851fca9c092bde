"""What a saved folder tells of itself in plain text: ``spark_estimator.json``, with the SHA-256 of each other file.

The digests find damage (`digests`); they keep nobody off who may write the folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.ml.param import Params

from spark_estimator import __version__
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.folders import TOLD_FILE
from spark_estimator.store.digests import digest_of
from spark_estimator.store.replacement import surviving_folder

_FORMAT = 3


def write_manifest(folder: Path, instance: Params, told: dict[str, Any]) -> None:
    """Writes Spark's metadata and our plain text. To be called last, when all other files are there.

    Args:
        told: what else there is to say of it.
    """
    import pyspark

    kind = type(instance)
    digests = {file.name: digest_of(file) for file in sorted(folder.iterdir())}
    said = {"format": _FORMAT, "kind": kind.__name__, "version": __version__, "uid": instance.uid}
    whole = {**said, **told, "sha256": digests}
    (folder / TOLD_FILE).write_text(json.dumps(whole, indent=2), encoding="utf-8")
    of_spark = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "timestamp": int(time.time() * 1000),
        "sparkVersion": str(pyspark.__version__),
        "uid": instance.uid,
        "paramMap": {},
        "defaultParamMap": {},
    }
    (folder / "metadata").mkdir()
    (folder / "metadata" / "part-00000").write_text(json.dumps(of_spark) + "\n", encoding="utf-8")
    (folder / "metadata" / "_SUCCESS").touch()


class Manifest:
    """What `write_manifest` has written.

    Attributes:
        folder: where it lies.

    Args:
        kind: the class whose instance it is.

    Raises:
        DataError: there is nothing, or another thing, or another version's, or it is broken.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        folder = surviving_folder(folder, TOLD_FILE)
        self.folder = folder
        self._kind = kind
        try:
            told = json.loads((folder / TOLD_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(f"{folder} holds no {kind}: there is no {TOLD_FILE}.") from error
        except (ValueError, OSError, RecursionError) as error:
            raise DataError(f"{folder} holds no {kind} that could be read: {TOLD_FILE}: {error}") from error
        if not isinstance(told, dict) or told.get("kind") != kind:
            found = told.get("kind") if isinstance(told, dict) else told
            raise DataError(f"{folder} holds no {kind}: {TOLD_FILE} tells of {found!r}.")
        if told.get("format") != _FORMAT:
            raise DataError(
                f"{folder} was written by spark_estimator {told.get('version')} in format {told.get('format')}; "
                f"{__version__} reads format {_FORMAT}. Load it there, and save it with this version."
            )
        self._told = told
        self.uid: str = self.value("uid", is_text, "a text")
        self.params: dict[str, Any] = self.value("params", lambda value: isinstance(value, dict), "an object")
        self._digests: dict[str, str] = self.value(
            "sha256",
            lambda value: isinstance(value, dict) and all(map(is_text, value.values())),
            "an object from files to texts",
        )

    def value(self, key: str, right: Callable[[Any], bool], words: str) -> Any:
        """What it says under a key.

        Args:
            right: whether a value is as it has to be.
            words: what that is, for the message.

        Raises:
            DataError: there is no such key, or another value.
        """
        if key not in self._told:
            raise self.broken(key, f"is not there, and should be {words}")
        if not right(self._told[key]):
            raise self.broken(key, f"should be {words}, and is {_short(self._told[key])}")
        return self._told[key]

    def broken(self, key: str, flaw: str) -> DataError:
        """An error about what it says under a key."""
        return DataError(f"{self.folder / TOLD_FILE} is broken: {key!r} {flaw.rstrip('.')}.")

    def has(self, name: str) -> bool:
        """Whether a file was written."""
        return name in self._digests

    def file(self, name: str) -> Path:
        """A file that was written with it, and is as it was.

        Raises:
            DataError: it is not, or it is not there.
        """
        file = self.folder / name
        if not self.has(name):
            raise self.broken("sha256", f"tells of no {name}")
        try:
            found = digest_of(file)
        except FileNotFoundError as error:
            raise DataError(f"{self.folder} holds no whole {self._kind}: there is no {name}.") from error
        except OSError as error:
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
        if found != self._digests[name]:
            raise DataError(
                f"{file} is damaged: its {file.stat().st_size} bytes are not those that were saved (by the SHA-256 in "
                f"{TOLD_FILE}). Copy the folder anew, or save the {self._kind} again."
            )
        return file


def is_text(value: Any) -> bool:
    """Whether JSON has a text, with something in it."""
    return isinstance(value, str) and bool(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
