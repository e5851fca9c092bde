"""Builds the engine for ``check.py`` on a machine that has the sources and nothing built: no pip, no environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAME = "libspark_estimator_engine.so"
LIBRARY = ROOT / "spark_estimator" / NAME
#: Built from the file of that name beside this one; see there.
TWO_MACHINES = ROOT / "build" / "gpu-check" / "two_machines.so"
_LAST_LINES = 30


class Tools(NamedTuple):
    """What a build needs; "" where it is not there.

    Attributes:
        cmake, ninja, make, compiler: their paths.
    """

    cmake: str
    ninja: str
    make: str
    compiler: str

    @classmethod
    def find(cls) -> Tools:
        """On the path, and beside this interpreter, where pip puts cmake and ninja."""
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])

        def look(*names: str) -> str:
            return next((path_of_tool for name in names if (path_of_tool := shutil.which(name, path=path))), "")

        named = os.environ.get("CXX", "")
        compiler = look(named.split()[0]) if named.split() else look("c++", "g++", "clang++")
        return cls(look("cmake"), look("ninja"), look("make"), compiler)

    def missing(self) -> list[str]:
        """What is missing, with how to get it."""
        missing = [] if self.cmake else ["cmake (pip install cmake)"]
        if not (self.ninja or self.make):
            missing.append("ninja or make (pip install ninja)")
        if not self.compiler:
            named = f"{os.environ['CXX']}, which CXX names" if os.environ.get("CXX") else "c++, g++ or clang++"
            missing.append(f"a C++ compiler that knows C++20: {named} (Debian, Ubuntu: apt-get install g++)")
        return missing

    def commands(self, folder: Path) -> list[list[str]]:
        """That configure in a folder and build there."""
        generator = ["-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={self.make}"]
        if self.ninja:
            generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={self.ninja}"]
        jobs = str(len(os.sched_getaffinity(0)))
        release = [*generator, "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_CXX_COMPILER={self.compiler}"]
        return [
            [self.cmake, "-S", str(ROOT / "native"), "-B", str(folder), *release],
            [self.cmake, "--build", str(folder), "--target", "spark_estimator_engine", "--parallel", jobs],
        ]


def make_ready(
    seconds: float,
    *,
    library: Path = LIBRARY,
    folder: Path = ROOT / "build",
    may_build: bool = True,
    tools: Tools | None = None,
    run: Callable[[list[str], float], str] | None = None,
) -> str:
    """Builds the engine if it is missing; returns the obstacle, "" if there is none.

    Args:
        seconds: that building may take.
        library: where it is to be.
        folder: in which one is made to build in.
        may_build: False: it is not built.
        tools: by default those of this machine.
        run: runs a command within a number of seconds and returns its error; by default `run_command`.
    """
    if library.exists():
        return ""
    if not may_build:
        return f"there is no {library}, and --no-build says that it is not to be built"
    tools = Tools.find() if tools is None else tools
    if missing := tools.missing():
        return f"there is no {library}, and to build it these are missing: {'; '.join(missing)}"
    folder = folder / f"gpu-check-{'ninja' if tools.ninja else 'make'}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"there is no {NAME}: building it in {folder}", flush=True)
    began = time.monotonic()
    for command in tools.commands(folder):
        if trouble := (run or run_command)(command, seconds - (time.monotonic() - began)):
            return f"the engine could not be built: {trouble}"
    # Under another name first, because a process may have an old one mapped.
    aside = library.with_name(f"{NAME}.new")
    shutil.copy(folder / NAME, aside)
    aside.replace(library)
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    return ""


def build_two_machines(library: Path = TWO_MACHINES, compiler: str = "") -> str:
    """Builds what `ways.MACHINES` preloads, in less than a second; returns the obstacle, "" if there is none.

    Args:
        library: the file to make.
        compiler: by default the first that is found.
    """
    compiler = compiler or Tools.find().compiler
    if not compiler:
        return "a C compiler is missing (Debian, Ubuntu: apt-get install g++)"
    library.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("two_machines.c")
    options = ["-x", "c", "-O2", "-Wall", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"]
    return run_command([compiler, *options], 60)


def run_command(command: list[str], seconds: float) -> str:
    """Runs a command, and ends it and its children after `seconds`; returns the error."""
    shown = " ".join(command)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=max(1.0, seconds))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"{shown}: it had not ended after {seconds:.0f} s"
        raise
    last = "\n".join(output.splitlines()[-_LAST_LINES:])
    return f"{shown}: exit code {process.returncode}\n{last}" if process.returncode else ""
