"""A Python file with arguments as a function for the ranks, where a launcher runs functions."""

from __future__ import annotations

import linecache
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from spark_estimator.errors import PreflightError


class Script:
    """Runs as ``python path arguments``: its module is ``__main__``. Its value is None.

    Args:
        path: of a file that the driver can read. Its text is sent to the ranks; modules beside it do so only where they
            are on a rank's host, or by ``sc.addPyFile``.
        arguments: become strings in ``sys.argv``.

    Raises:
        PreflightError: the driver can't read the file.
    """

    def __init__(self, path: str | os.PathLike[str], arguments: Sequence[object] = ()) -> None:
        self._path = os.path.abspath(path)
        self._arguments = [str(argument) for argument in arguments]
        self.__name__ = os.path.basename(self._path)
        try:
            self._text = Path(self._path).read_text(encoding="utf-8")
        except OSError as error:
            raise PreflightError(
                f"run({os.fspath(path)!r}): the driver can't read this script: {error.strerror or error}. Pass the "
                "path of a Python file on the driver, or a function."
            ) from None

    def __call__(self) -> None:
        module = types.ModuleType("__main__")
        module.__file__ = self._path
        linecache.cache[self._path] = (len(self._text), None, self._text.splitlines(keepends=True), self._path)
        sys.argv[:] = [self._path, *self._arguments]
        sys.path.insert(0, os.path.dirname(self._path))
        sys.modules["__main__"] = module
        try:
            # The user's own program, which is what the job is for.
            exec(compile(self._text, self._path, "exec"), vars(module))
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
