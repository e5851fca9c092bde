"""The plain text of a saved folder: ``spark_estimator.json``, with the SHA-256 of each other file.

The digests find damage (`digests`); they are no protection against a user who may write to the folder.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pyspark.ml.param import Params

from spark_estimator import __version__
from spark_estimator.errors import DataError
from spark_estimator.estimators.persistence.folders import MANIFEST_FILE, MLFLOW_FOLDER
from spark_estimator.store.digests import compute_digest
from spark_estimator.store.replacement import find_surviving_folder

_Result = TypeVar("_Result")

_FORMAT = 3


def write_manifest(folder: Path, instance: Params, details: dict[str, Any]) -> None:
    """Write Spark's metadata and the manifest. To be called last, when all other files are there.

    Args:
        details: further keys.
    """
    import pyspark

    kind = type(instance)
    digests = {file.name: compute_digest(file) for file in sorted(folder.iterdir()) if file.is_file()}
    header = {"format": _FORMAT, "kind": kind.__name__, "version": __version__, "uid": instance.uid}
    whole = {**header, **details, "sha256": digests}
    (folder / MANIFEST_FILE).write_text(json.dumps(whole, indent=2), encoding="utf-8")
    of_spark = {
        "class": get_public_path(kind),
        "timestamp": int(time.time() * 1000),
        "sparkVersion": str(pyspark.__version__),
        "uid": instance.uid,
        "paramMap": {},
        "defaultParamMap": {},
    }
    (folder / "metadata").mkdir()
    (folder / "metadata" / "part-00000").write_text(json.dumps(of_spark) + "\n", encoding="utf-8")
    (folder / "metadata" / "_SUCCESS").touch()


def get_public_path(kind: type) -> str:
    """Return the path that Spark ML imports a class from: the public one of our classes, which stays when modules
    move.
    """
    path: str = vars(kind).get("_public_path", f"{kind.__module__}.{kind.__qualname__}")
    return path


class Manifest:
    """The content that `write_manifest` has written.

    Attributes:
        folder: that it is in.

    Args:
        folder: that it is in, or MLflow's folder of a model, which has it inside.
        kind: the class whose instance it is.

    Raises:
        DataError: there is nothing, or another thing, or another version's, or it is broken.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        inside = folder / "data" / MLFLOW_FOLDER
        folder = find_surviving_folder(inside if (folder / "MLmodel").is_file() else folder, MANIFEST_FILE)
        self.folder = folder
        self._kind = kind
        try:
            content = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            reason = f"{MANIFEST_FILE} is missing" if folder.exists() else "the folder does not exist"
            raise DataError(f"{folder} doesn't contain a {kind}: {reason}.") from error
        except (ValueError, OSError, RecursionError) as error:
            raise DataError(f"{folder}: the {kind} cannot be read: {MANIFEST_FILE}: {error}") from error
        if not isinstance(content, dict) or content.get("kind") != kind:
            result = content.get("kind") if isinstance(content, dict) else content
            raise DataError(f"{folder} doesn't contain a {kind}: {MANIFEST_FILE} has kind {result!r}.")
        if content.get("format") != _FORMAT:
            raise DataError(
                f"{folder} was written by spark_estimator {content.get('version')} in format {content.get('format')}; "
                f"{__version__} reads format {_FORMAT}. Load it there, and save it with this version."
            )
        self._content = content
        self.uid: str = self.get("uid", is_text, "a text")
        self.params: dict[str, Any] = self.get("params", lambda value: isinstance(value, dict), "an object")
        self._digests: dict[str, str] = self.get(
            "sha256",
            lambda value: isinstance(value, dict) and all(map(is_text, value.values())) and all(map(_is_name, value)),
            "an object from names of files to texts",
        )

    def get(self, key: str, right: Callable[[Any], bool], words: str) -> Any:
        """Return the value of a key.

        Args:
            right: whether a value is as it has to be.
            words: what that is, for the message.

        Raises:
            DataError: the key is missing, or its value is not `right`.
        """
        if key not in self._content:
            raise self.make_error(key, f"is missing; it must be {words}")
        if not right(self._content[key]):
            raise self.make_error(key, f"must be {words}; it is {_shorten(self._content[key])}")
        return self._content[key]

    def get_optional(self, key: str, default: Any) -> Any:
        """Return the value of a key that not every folder has.

        Args:
            default: the value where the key is missing; a value of another type is an error.
        """
        if key not in self._content:
            return default
        return self.get(key, lambda value: isinstance(value, type(default)), f"of type {type(default).__name__}")

    def make_error(self, key: str, flaw: str) -> DataError:
        """Return an error about the value of a key."""
        return DataError(f"{self.folder / MANIFEST_FILE} is broken: {key!r} {flaw.rstrip('.')}.")

    @property
    def files(self) -> list[str]:
        """Return the files that were written with it."""
        return sorted(self._digests)

    def has(self, name: str) -> bool:
        """Return whether a file was written."""
        return name in self._digests

    def check_file(self, name: str) -> Path:
        """Return a file that was written with the manifest, and is unchanged.

        Raises:
            DataError: it is not, or it is not there.
        """
        self._check(name, self._read(name, compute_digest))
        return self.folder / name

    def read_content(self, name: str) -> bytes:
        """Return the bytes of a file that was written with the manifest, read once: what is checked is what is used.

        Raises:
            DataError: it is not as it was, or it is not there.
        """
        result = self._read(name, Path.read_bytes)
        self._check(name, hashlib.sha256(result).hexdigest())
        return result

    def _read(self, name: str, read: Callable[[Path], _Result]) -> _Result:
        file = self.folder / name
        if not self.has(name):
            raise self.make_error("sha256", f"has no entry for {name}")
        try:
            return read(file)
        except FileNotFoundError as error:
            raise DataError(f"{self.folder}: the {self._kind} is incomplete: {name} is missing.") from error
        except OSError as error:
            raise DataError(f"{file} cannot be read: {type(error).__name__}: {error}") from error

    def _check(self, name: str, digest: str) -> None:
        file = self.folder / name
        if digest != self._digests[name]:
            raise DataError(
                f"{file} is damaged: its {file.stat().st_size} bytes don't match the SHA-256 in {MANIFEST_FILE}. Copy "
                f"the folder again, or save the {self._kind} again."
            )


def is_text(value: Any) -> bool:
    """Return whether JSON has a text, with something in it."""
    return isinstance(value, str) and bool(value)


def _is_name(name: str) -> bool:
    """Return whether it is the name of a file in a folder, and of none elsewhere."""
    return name not in ("", ".", "..") and "/" not in name


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
