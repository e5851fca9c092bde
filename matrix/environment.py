"""Makes a cell's environment: a venv with what the extras of ``pyproject.toml`` ask for, in the cell's versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from matrix.cells import Cell

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "matrix"
_EXTRAS = ("torch", "spark", "delta")
_INSTALL_SECONDS = 3600


class NoPython(Exception):
    """This machine has no Python of that version."""


def find_python(version: str) -> str:
    """The interpreter ``python3.N`` that is on PATH and runs, or pyenv's.

    Raises:
        NoPython: there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python{version}")
    for candidate in (shutil.which(f"python{version}"), *map(str, sorted(pyenv)), sys.executable):
        if candidate is None:
            continue
        code = f"import sys, venv; sys.exit('.'.join(map(str, sys.version_info[:2])) != {version!r})"
        if subprocess.run([candidate, "-c", code], capture_output=True, check=False).returncode == 0:
            return candidate
    raise NoPython(f"there is no Python {version} here")


def requirements(cell: Cell) -> list[str]:
    """The requirements that pip installs."""
    text = (ROOT / "pyproject.toml").read_text()
    table = re.sub(r"(?m)#.*$", "", text)
    wanted = re.findall(r'"([^"]+)"', _entry(table, "dependencies"))
    extras = (*_EXTRAS, "connect") if cell.connect else _EXTRAS
    for extra in extras:
        wanted += [line for line in re.findall(r'"([^"]+)"', _entry(table, extra)) if "spark-estimator" not in line]
    return wanted


def _entry(text: str, name: str) -> str:
    match = re.search(rf"(?ms)^{name} = \[(.*?)\]$", text)
    assert match is not None, name
    return match[1]


def build(cell: Cell) -> Path:
    """Makes the environment, unless it is there already, and returns its interpreter.

    Raises:
        NoPython: there is none for it.
        CalledProcessError: pip could not install it, for example because the extras do not allow a version.
    """
    folder = FOLDER / cell.name
    python = folder / "bin" / "python"
    stamp = folder / ".requirements"
    pins = [f"{name}=={version}" for name, version in cell.pins.items()]
    wanted = [*requirements(cell), *pins]
    if stamp.exists() and stamp.read_text().split("\n") == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([find_python(cell.python), "-m", "venv", folder], check=True, timeout=300)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"]
    # Spark's source distributions up to 4.0 are built with setuptools.
    subprocess.run([*pip, "--upgrade", "pip", "setuptools", "wheel"], check=True, timeout=600)
    subprocess.run([*pip, *wanted], check=True, timeout=_INSTALL_SECONDS)
    stamp.write_text("\n".join(wanted))
    return python
