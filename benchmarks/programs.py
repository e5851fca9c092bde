"""Compiles and starts the programs of a benchmark: the engine's and MPI's C and C++ programs, and Python ranks."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.interleaved import BenchmarkError, Command, Group
from benchmarks.namespaces import UnavailableError
from spark_estimator import _native
from spark_estimator.collectives.rendezvous import Endpoint, Rendezvous, offer_to_command
from spark_estimator.launch.job.environment import decide_host_threads, make_worker_environment

NATIVE = Path(__file__).parents[1] / "native"
_COMPILE_SECONDS = 180


def engine_bench(folder: Path) -> Path:
    """Compiles the program that measures the engine through its C ABI, against the library that Python uses.

    Args:
        folder: folder for the compiled program.

    Raises:
        UnavailableError: there is no compiler, or the program's source is missing.
        BenchmarkError: the program does not compile.
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
    """The engine through its C ABI: variants "plan", "shared" (in memory that all ranks map) and "bound".

    Args:
        folder: folder for the compiled program.
        size: number of ranks.
        tcp: use loopback TCP instead of shared memory.

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
        UnavailableError: the library is not installed, or the program's source is missing.
        BenchmarkError: the program does not compile, or the ranks did not start.
    """
    compiler, launcher = _mpi_tools(name)
    program = _compiled(folder, "mpi_bench.c", f"mpi_bench_{name}", [compiler, "-std=c11"], [])
    environment = {}
    if name == "openmpi":
        # Open MPI itself detects whether there are more ranks than cores; waiting ranks then yield.
        options = ["--oversubscribe", *(["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"] if tcp else [])]
        options += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    else:
        options = []
        # MPICH is built on UCX (in Debian) or on libfabric; both use shared memory unless it is disabled.
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
    module: str = "benchmarks.python_rank",
    environment: Mapping[str, str] | None = None,
    flow_bytes_per_second: int = 0,
    within: Sequence[AbstractContextManager[object]] | None = None,
) -> Group:
    """Python ranks: variants "python", "gloo" (if `gloo` is set) and "link" (if `link` is set).

    Args:
        name: for messages.
        pairs: [size] each rank's rendezvous and endpoint; this function closes the endpoints.
        gloo: ``tcp://host:port`` of gloo's rendezvous; None: without gloo.
        link: whether to offer the variant that measures the network itself.
        module: module that each rank runs, with the arguments of ``python_rank``.
        environment: additional variables of the ranks.
        flow_bytes_per_second: what each TCP connection of a rank sends at most; 0: no limit.
        within: [size] context in which each rank is started.

    Raises:
        BenchmarkError: the ranks did not start.
    """
    offered: list[int] = []

    def commands(path: str) -> list[Command]:
        result = []
        for rank, (rendezvous, endpoint) in enumerate(pairs):
            fd, variables = offer_to_command(rendezvous)
            offered.append(fd)
            arguments = [sys.executable, "-m", module, path]
            arguments += [
                "--parent",
                str(os.getpid()),
                *(["--gloo", gloo] if gloo else []),
                *(["--link"] if link else []),
                *(["--flow-bytes-per-second", str(flow_bytes_per_second)] if flow_bytes_per_second else []),
            ]
            paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            settings = {
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                **variables,
                **(environment or {}),
            }
            settings = make_worker_environment(os.environ, settings, decide_host_threads(len(pairs)))
            descriptors = (fd, *endpoint.filenos())
            result.append(Command(arguments, settings, descriptors, within[rank] if within else None))
        return result

    try:
        return Group(name, len(pairs), commands)
    finally:
        for fd in offered:
            os.close(fd)
        for _, endpoint in pairs:
            endpoint.close()


def version_of(name: str) -> str:
    """The version that ``mpirun`` reports, such as ``"Open MPI 4.1.4"``. Raises UnavailableError."""
    _, launcher = _mpi_tools(name)
    text = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=60).stdout
    words = text.split()
    number = next((word for word in words if word[:1].isdigit()), "?")
    return f"{ {'openmpi': 'Open MPI', 'mpich': 'MPICH'}[name] } {number}"


def machine() -> dict[str, str | int]:
    """The machine of the measurement."""
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
    # Debian's mpicc comes with the programs, and the header with another package.
    header = [compiler, "-x", "c", "-include", "mpi.h", "-fsyntax-only", os.devnull]
    if subprocess.run(header, capture_output=True, timeout=_COMPILE_SECONDS).returncode != 0:
        raise UnavailableError(f"mpicc.{name} finds no mpi.h (Debian: lib{name}-dev)")
    return compiler, launcher


def _compiled(folder: Path, source: str, program: str, compiler: Sequence[str], libraries: Sequence[str]) -> Path:
    path = NATIVE / "benchmarks" / source
    if not path.exists():
        raise UnavailableError(f"{path} does not exist: run the benchmark in a checkout of the repository")
    target = folder / program
    command = [*compiler, "-O3", str(path), "-o", str(target), *libraries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
    if done.returncode != 0:
        raise BenchmarkError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return target
