"""Starts the groups of a benchmark: the engine's and MPI's programs, compiled here and now, and Python's ranks."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from spark_estimator import _native
from spark_estimator.benchmarks.interleaved import BenchmarkError, Command, Group
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, offer_to_command
from spark_estimator.launch.job.environment import host_share, worker_environment

NATIVE = Path(__file__).parents[2] / "native"
_COMPILE_SECONDS = 180


class UnavailableError(Exception):
    """A group cannot be measured on this machine; the text says what is missing."""


def engine_bench(folder: Path) -> Path:
    """Compiles the program that measures the engine through its C ABI, against the library that Python uses.

    Args:
        folder: where to.

    Raises:
        UnavailableError: there is no compiler, or no checkout with the program's source.
        BenchmarkError: it does not compile.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        raise UnavailableError("there is no C++ compiler (c++)")
    library = _native.library_path()
    return _compiled(
        folder,
        "engine_bench.cc",
        "engine_bench",
        [compiler, "-std=c++20", f"-I{NATIVE / 'include'}", f"-I{NATIVE}"],
        [str(library), f"-Wl,-rpath,{library.parent}", "-pthread"],
    )


def native_group(folder: Path, size: int, *, tcp: bool) -> Group:
    """The engine through its C ABI: variants "plan", "shared" (memory that all ranks see) and "bound".

    Args:
        folder: where the program is compiled to.
        size: number of ranks.
        tcp: loopback TCP between them, no shared memory.

    Raises:
        UnavailableError, BenchmarkError: as `engine_bench`; the latter also when the ranks did not start.
    """
    program = engine_bench(folder)
    options = ["--np", str(size), *(["--tcp"] if tcp else [])]
    return Group("native", size, lambda path: [Command([str(program), "--turns", path, *options])])


def mpi_group(name: str, folder: Path, size: int, *, tcp: bool) -> Group:
    """The same ops under MPI, variant "mpi".

    Args:
        name: ``openmpi`` or ``mpich``.
        folder, size, tcp: as for `native_group`.

    Raises:
        UnavailableError: it is not installed, or there is no checkout.
        BenchmarkError: the program does not compile, or the ranks did not start.
    """
    compiler, launcher = _mpi_tools(name)
    program = _compiled(folder, "mpi_bench.c", f"mpi_bench_{name}", [compiler, "-std=c11"], [])
    environment = {}
    if name == "openmpi":
        # It finds out by itself whether there are more ranks than cores, and lets waiting ranks yield then.
        options = ["--oversubscribe", *(["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"] if tcp else [])]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    else:
        options = []
        # MPICH is built over UCX (Debian's) or over libfabric, and both would share memory by themselves.
        carriers = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
        environment = carriers if tcp else {}
    arguments = [launcher, *options, "-np", str(size), str(program)]
    return Group(name, size, lambda path: [Command([*arguments, path], environment)])


def python_group(
    name: str,
    pairs: Sequence[tuple[Rendezvous, Endpoint]],
    *,
    gloo: str | None = None,
    link: bool = False,
    module: str = "spark_estimator.benchmarks.python_rank",
    environment: Mapping[str, str] | None = None,
    within: Sequence[AbstractContextManager[object]] | None = None,
) -> Group:
    """Python's ranks: variants "python", with an address "gloo", and with `link` "link".

    Args:
        name: for messages.
        pairs: [size] each rank's rendezvous and sockets; the sockets are closed here.
        gloo: ``tcp://host:port`` where gloo's ranks meet; None: without gloo.
        link: with the network's own bound.
        module: what each rank runs; it takes the arguments of ``python_rank``.
        environment: variables for the ranks.
        within: [size] entered around the start of each rank.

    Raises:
        BenchmarkError: the ranks did not start.
    """
    offered: list[int] = []

    def commands(path: str) -> list[Command]:
        made = []
        for place, (rendezvous, endpoint) in enumerate(pairs):
            fd, variables = offer_to_command(rendezvous)
            offered.append(fd)
            arguments = [sys.executable, "-m", module, path]
            arguments += [
                "--parent",
                str(os.getpid()),
                *(["--gloo", gloo] if gloo else []),
                *(["--link"] if link else []),
            ]
            paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
            settings = {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                **variables,
                **(environment or {}),
            }
            settings = worker_environment(os.environ, settings, host_share(len(pairs)))
            made.append(Command(arguments, settings, (fd, *endpoint.filenos()), within[place] if within else None))
        return made

    try:
        return Group(name, len(pairs), commands)
    finally:
        for fd in offered:
            os.close(fd)
        for _, endpoint in pairs:
            endpoint.close()


def version_of(name: str) -> str:
    """``"Open MPI 4.1.4"`` or ``"MPICH 4.0.2"``: what ``mpirun`` says of itself. Raises UnavailableError."""
    _, launcher = _mpi_tools(name)
    text = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=60).stdout
    words = text.split()
    number = next((word for word in words if word[:1].isdigit()), "?")
    return f"{ {'openmpi': 'Open MPI', 'mpich': 'MPICH'}[name] } {number}"


def machine() -> dict[str, str | int]:
    """What the figures were taken on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = f"{os.getloadavg()[0]:.2f}"
    return {
        "processor": model,
        "cores": cores,
        "system": f"{platform.system()} {platform.release()}",
        "load_before": load,
    }


def _mpi_tools(name: str) -> tuple[str, str]:
    compiler, launcher = shutil.which(f"mpicc.{name}"), shutil.which(f"mpirun.{name}")
    if compiler is None or launcher is None:
        raise UnavailableError(f"mpicc.{name} or mpirun.{name} is not installed (Debian: lib{name}-dev, {name}-bin)")
    return compiler, launcher


def _compiled(folder: Path, source: str, program: str, compiler: Sequence[str], libraries: Sequence[str]) -> Path:
    path = NATIVE / "benchmarks" / source
    if not path.exists():
        raise UnavailableError(f"the source {path} is not there: this needs a checkout, not an installed wheel")
    target = folder / program
    command = [*compiler, "-O3", str(path), "-o", str(target), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return target
