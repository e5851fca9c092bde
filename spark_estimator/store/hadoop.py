"""Hadoop's default file system: the value of ``fs.defaultFS`` in the configuration that this process can see."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from spark_estimator.errors import PreflightError

_KEYS = ("fs.defaultFS", "fs.default.name")  # the second is the older name
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_MOST_EXPANSIONS = 20  # as in Hadoop


def find_default_filesystem(path: str, extra_conf: Mapping[str, str]) -> str:
    """Return Hadoop's default file system, ``hdfs://host:port``, by files and `extra_conf`, for this path.

    Raises PreflightError: nothing names one, or it is the local file system.
    """
    sources: list[str] = []
    for source, value in _list_candidates(extra_conf):
        sources.append(source)
        if value is None or value.startswith("file:"):
            continue
        match = re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]+", value)
        if match is None:
            raise PreflightError(f"{path}: fs.defaultFS of {source} is {value!r}, and has to be like hdfs://host:port.")
        return match[0]
    raise PreflightError(
        f"{path} is a path on Hadoop's default file system, and there is none: fs.defaultFS is not set, or is "
        f"file:///, in {'; '.join(sources)}. Write hdfs://host:port{path if path.startswith('/') else '/path'}, or set "
        "HADOOP_CONF_DIR to the folder of core-site.xml; for a folder of this machine use Store.create or LocalStore."
    )


def _list_candidates(extra_conf: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield each source that may name the default file system, and its value; the first one is used."""
    yield "extra_conf", _find_first(extra_conf)
    yield "the Spark session", _read_from_session()
    for source, folder in list_configuration_folders():
        file = Path(folder) / "core-site.xml"
        yield f"{file} ({source})", _read_from_file(file)


def _find_first(properties: Mapping[str, str]) -> str | None:
    return next((properties[key] for key in _KEYS if key in properties), None)


def list_configuration_folders() -> Iterator[tuple[str, str]]:
    """Yield where Hadoop's files may be: why there, and the folder."""
    folder, home = os.environ.get("HADOOP_CONF_DIR"), os.environ.get("HADOOP_HOME")
    if folder:
        yield "HADOOP_CONF_DIR", folder
    else:
        if home:
            yield "HADOOP_HOME", f"{home}/etc/hadoop"
        yield "HADOOP_CONF_DIR is not set", "/etc/hadoop/conf"
    for entry in os.environ.get("CLASSPATH", "").split(os.pathsep):
        if entry and os.path.isdir(entry):
            yield "CLASSPATH", entry


def _read_from_session() -> str | None:
    """Return the active Spark session's value; None: there is no session, or it has none."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    # The active one is that of this thread.
    session = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if session is None:
        return None
    try:
        if type(session).__module__.startswith("pyspark.sql.connect"):
            value = session.conf.get("spark.hadoop.fs.defaultFS", None)
        else:
            # With core-site.xml as the driver's Java sees it, and spark.hadoop.* over it.
            value = session.sparkContext._jsc.hadoopConfiguration().get(_KEYS[0])
    except Exception:  # a session that has ended
        return None
    return None if value is None else str(value)


def _read_from_file(file: Path) -> str | None:
    """Return the value in a file of Hadoop's, if any. Raises PreflightError: it cannot be read."""
    try:
        root = ElementTree.parse(file).getroot()
    except FileNotFoundError:
        return None
    except (OSError, ElementTree.ParseError) as error:
        raise PreflightError(f"{file} cannot be read: {error}") from error
    properties = {
        (item.findtext("name") or "").strip(): (item.findtext("value") or "").strip() for item in root.iter("property")
    }
    value = _find_first(properties)
    for _ in range(_MOST_EXPANSIONS):
        variable = _VARIABLE.search(value or "")
        if value is None or variable is None:
            return value
        name = variable[1]
        expansion = os.environ.get(name[len("env.") :]) if name.startswith("env.") else properties.get(name)
        if expansion is None:
            break
        value = value.replace(variable[0], expansion)
    raise PreflightError(f"{file}: fs.defaultFS is {value!r}, with a variable that has no value in this file.")
