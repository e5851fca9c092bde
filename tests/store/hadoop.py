"""Hadoop for tests: configurations in files, and a libhdfs that keeps a name node's files in a folder of this machine.

There is no real name node here: Spark contains only Hadoop's client. fsspec and pyarrow are the real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def stand_in(folder: Path) -> dict[str, str]:
    """Builds the library. Returns the variables with which pyarrow finds it; a file of `NAME:PORT/x` is below `FILES`.

    It is skipped without a compiler or Java, which pyarrow loads.
    """
    java, compiler = shutil.which("java"), shutil.which("g++")
    if java is None or compiler is None:
        pytest.skip("there is no g++ or no Java here")
    library = folder / "library"
    library.mkdir()
    (folder / "files").mkdir()
    source = Path(__file__).with_name("stand_in_libhdfs.cc")
    target = str(library / "libhdfs.so")
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", "-o", target, source], check=True, timeout=120)
    return {
        "ARROW_LIBHDFS_DIR": str(library),
        "STAND_IN_HDFS": str(folder / "files"),
        "JAVA_HOME": os.path.dirname(os.path.dirname(os.path.realpath(java))),
    }


def core_site(folder: Path, **properties: str) -> Path:
    """Writes ``core-site.xml``; in a property's name ``__`` means a point. Returns the folder."""
    folder.mkdir(exist_ok=True)
    lines = [
        f"<property><name>{name.replace('__', '.')}</name><value> {value} </value></property>"
        for name, value in properties.items()
    ]
    text = "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>"])
    (folder / "core-site.xml").write_text(text)
    return folder
