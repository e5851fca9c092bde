"""The program that every rank runs, on any launcher: runs a function or a command, and reports how it ended.

Its supervisor writes the `WorkerSpec` and the pickled function to its stdin, and reads ``result_pipe`` frames from a
pipe. Secrets are in neither its arguments nor its environment. The process leads a separate process group, which dies
with the supervisor.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zipimport
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType
from typing import BinaryIO

from spark_estimator.compat.importer import find_autoload_path
from spark_estimator.errors import NativeLibraryError, ShutDownError
from spark_estimator.launch.job import failures
from spark_estimator.launch.job.environment import forget_malloc
from spark_estimator.launch.job.failures import FailureReport
from spark_estimator.launch.job.spec import WorkerSpec
from spark_estimator.launch.worker import error_text, main_objects
from spark_estimator.launch.worker.result_pipe import BEGUN, ENDED, FAILURE, LOG, RECORD, ResultWriter
from spark_estimator.launch.worker.spark_files import find_spark_files
from spark_estimator.observe import progress

_BEGUN = time.time()
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct(">Q")
# The names of the threads of spark_estimator.data begin so.
_LOADERS = ("spark_estimator batches", "spark_estimator windows", "spark_estimator reader")


def bind_to_parent(parent: int) -> None:
    """Have the kernel end this process group when process `parent` dies; end it at once if that has already ended."""
    try:
        from spark_estimator import _native

        _native.check(_native.library().se_die_with_parent(parent))
    except (NativeLibraryError, ImportError):
        # Without the library only this process is bound, not what it starts; its end is still better than none.
        if sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except ShutDownError:
        os._exit(1)
    if os.getppid() != parent:
        os._exit(1)


def make_input(spec: WorkerSpec, payload: bytes) -> list[bytes]:
    """Return the bytes for a worker's stdin, in pieces: the spec with its length, and the payload."""
    text = spec.to_json().encode()
    return [_LENGTH.pack(len(text)) + text, payload]


def read_spec(stream: BinaryIO) -> WorkerSpec:
    """Read the spec from stdin; the payload follows it. Raises EOFError: the supervisor ended, or gave up the job."""
    header = stream.read(_LENGTH.size)
    (length,) = _LENGTH.unpack(header) if len(header) == _LENGTH.size else (0,)
    text = stream.read(length)
    if not text or len(text) != length:
        raise EOFError("the supervisor ended before it sent the job")
    return WorkerSpec.from_json(text.decode())


def main() -> None:
    """Run the program; `supervisor` starts it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--result-fd", type=int, required=True)
    parser.add_argument("--preload", default="")
    options = parser.parse_args()
    pipe = prepare_process(options.parent, options.result_fd)
    preload(filter(None, options.preload.split(",")))
    work(pipe)


def prepare_process(parent: int, result_fd: int) -> ResultWriter:
    """Bind this process to its supervisor, and return the pipe to it."""
    bind_to_parent(parent)
    # Signals that Spark or a shell has set to "ignore" would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(result_fd, False)
    return ResultWriter(result_fd)


def preload(modules: Iterable[str]) -> None:
    """Import modules. One that can't be imported is left out: if the function needs it, its import raises the error."""
    # Modules are kept, so that there is no garbage among them: looking for it is a quarter of the time that importing
    # PyTorch or TensorFlow takes. The collector runs again when the function does.
    gc.disable()
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    gc.freeze()


def work(pipe: ResultWriter) -> None:
    """Read the spec from stdin, and run its function or command; then exit."""
    try:
        spec = read_spec(sys.stdin.buffer)
    except EOFError:
        os._exit(1)
    sys.path[:] = [*spec.sys_path, find_autoload_path()]
    find_new_modules()
    # Also for processes that this one starts: torch's handler of env:// would wait in them for a store. First, as only
    # one `sitecustomize` of the path runs by itself.
    os.environ["PYTHONPATH"] = os.pathsep.join([find_autoload_path(), *filter(None, [spec.python_path])])
    os.environ.update(spec.environment)
    if spec.command:
        sys.exit(run_command(spec, pipe))
    forget_malloc(os.environ)  # a command, in its turn, needs it: there the rank is the command's process
    status = run_function(spec, sys.stdin.buffer, pipe)
    leave_static_objects(status)
    sys.exit(status)


def find_new_modules() -> None:
    """Have imports find files that have come since this process looked for some; as `importlib.invalidate_caches`.

    But archives that have not changed since the process began, such as Spark's own, are not read again, which takes
    0.1 s.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            with suppress(OSError):
                # Its time of modification may be older than the process in a file that has just come.
                if os.stat(finder.archive).st_ctime < _BEGUN:
                    continue
        if finder is None:
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def leave_static_objects(status: int) -> None:
    """Have the process end with `status` once Python has, without the destructors of C++'s static objects.

    PyTorch's take 0.2 s in a process that was forked after its import. Tools that write what they have measured in
    such a destructor, such as NVIDIA's profilers, are loaded by one of these variables: with them nothing changes.
    """
    if os.environ.get("LD_PRELOAD") or os.environ.get("CUDA_INJECTION64_PATH"):
        return
    with suppress(NativeLibraryError, ImportError):
        from spark_estimator import _native

        library = _native.library()
        library.se_set_exit_status(status)
        ctypes.pythonapi.Py_AtExit(library.se_exit)


def run_function(spec: WorkerSpec, payload: BinaryIO, pipe: ResultWriter) -> int:
    """Unpickle, as it arrives, and call the function; send its value or error. Return the exit status."""
    import cloudpickle

    from spark_estimator.collectives import preemption, rendezvous
    from spark_estimator.compat.importer import install_as_driver
    from spark_estimator.env import Settings
    from spark_estimator.observe import driver_log, training_records

    faulthandler.enable()  # a crash in native code then leaves the Python stack on stderr
    with suppress(ValueError):  # of a variable, which init() names
        preemption.watch().begin(Settings.read())
    sys.argv = [spec.function]
    rendezvous.set_current(spec.rendezvous)
    driver_log.set_sink(lambda message: _send_message(pipe, message))
    training_records.set_sink(lambda record: pipe.send_json(RECORD, record))
    install_as_driver()  # before the function is unpickled: it may name horovod or sparkdl
    find_spark_files(os.environ)
    main_objects.send_by_value()
    pipe.send_json(BEGUN, {"pid": os.getpid()})
    try:
        # The payload was read from the supervisor's pipe: it is the function of the driver that runs this job.
        function, args, kwargs = pickle.load(payload)  # noqa: S301
    except BaseException as error:
        return _fail(pipe, spec, failures.NOT_LOADED, _explain_load_error(spec.function, error), error)
    finally:
        _close_stdin()
        gc.enable()
    try:
        value = function(*args, **kwargs)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        quoted = "" if error.code is None else repr(error.code)
        message = f"called sys.exit({quoted}) before {spec.function} returned"
        return _fail(pipe, spec, failures.EXITED, message, error, exit_code=status)
    except BaseException as error:
        return _fail(pipe, spec, failures.RAISED, f"raised {error_text.describe_error(error)}", error)
    if spec.wants_result:
        try:
            pickled = cloudpickle.dumps(value)
        except BaseException as error:
            message = (
                f"returned a {type(value).__module__}.{type(value).__qualname__}, which cannot be pickled: "
                f"{error_text.format_error(error)}. Return plain data (numbers, arrays, a state_dict), or save it to "
                f"storage in {spec.function} and return the path."
            )
            return _fail(pipe, spec, failures.BAD_RESULT, message, error)
        if len(pickled) > spec.max_result_bytes:
            message = (
                f"returned a value of {len(pickled) / (1 << 20):.1f} MiB when pickled; at most "
                f"{spec.max_result_bytes >> 20} MiB can be returned to the driver. Save it to storage in "
                f"{spec.function} (a path that the driver can read too) and return the path."
            )
            return _fail(pipe, spec, failures.BAD_RESULT, message, None)
        pipe.send_value(pickled, _list_lingering_threads())
    else:
        # Shows that the function has returned: an exit status of 0 alone does not.
        pipe.send_value(b"", _list_lingering_threads())
    return 0


def run_command(spec: WorkerSpec, pipe: ResultWriter) -> int:
    """Run the command in this process's group, as the guard that dies with the launcher. Return the exit status."""
    from spark_estimator import compat
    from spark_estimator.collectives import preemption
    from spark_estimator.collectives.rendezvous import offer_to_command
    from spark_estimator.env import Settings

    descriptor, variables = offer_to_command(spec.rendezvous)
    environment = {**os.environ, **variables, "PYTHONUNBUFFERED": "1"}
    if not compat.real_horovod_present():
        environment["PYTHONPATH"] = os.pathsep.join(
            [*filter(None, [environment.get("PYTHONPATH")]), compat.shims_path()]
        )
    rendezvous = spec.rendezvous
    progress_fd = progress.find_pipe(environment)
    sockets = [
        fd
        for fd in (rendezvous.listen_fd, rendezvous.local_fd, rendezvous.launcher_fd, progress_fd)
        if fd is not None and fd >= 0
    ]
    # A handler, not SIG_IGN: an ignored signal would stay ignored in the command.
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)
    with suppress(ValueError):  # until init() watches for it, as it would end the command
        preemption.watch().ignore(Settings.read())
    try:
        # Running a command line is horovodrun's purpose; no shell interprets it.
        child = subprocess.Popen(
            spec.command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[descriptor, *sockets]
        )
    except OSError as error:
        message = f"could not start the command {spec.command[0]!r}: {error.strerror or error}"
        if spec.command[0].endswith(".py") and os.path.isfile(spec.command[0]):
            message += f"; did you mean: horovodrun -np {len(rendezvous.peers)} python {shlex.join(spec.command)}?"
        return _fail(pipe, spec, failures.NOT_STARTED, message, None, exit_code=127)
    for fd in [descriptor, *sockets]:
        os.close(fd)
    pipe.send_json(BEGUN, {"pid": child.pid})
    status = child.wait()
    pipe.send_json(ENDED, {"status": status})
    return status if status >= 0 else 128 - status


def _close_stdin() -> None:
    """Have stdin be empty from now on."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # the old one has read ahead


def _list_lingering_threads() -> list[str]:
    """Return the threads that may keep this process from ending, and where each is; a loader's pool ends with it."""
    main, frames = threading.main_thread(), sys._current_frames()
    return [
        f"{thread.name!r}{_describe_position(frames.get(thread.ident or 0))}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not main and not thread.name.startswith(_LOADERS)
    ]


def _describe_position(frame: FrameType | None) -> str:
    """Return the line of the user's code that a thread is at, or has called the standard library from; '' for none."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names:
        frame = frame.f_back
    return "" if frame is None else f" (in {frame.f_code.co_name}, {frame.f_code.co_filename} line {frame.f_lineno})"


def _send_message(pipe: ResultWriter, message: str) -> bool:
    if not pipe.usable:
        return False
    pipe.send(LOG, message.encode("utf-8", "replace"))
    return True


def _fail(
    pipe: ResultWriter,
    spec: WorkerSpec,
    kind: str,
    message: str,
    error: BaseException | None,
    *,
    exit_code: int | None = None,
) -> int:
    """Send a report and return the exit status for it."""
    report = FailureReport(
        rank=spec.rendezvous.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        kind=kind,
        message=message,
        traceback="" if error is None else error_text.format_traceback(error, __file__.__eq__),
        exit_code=exit_code,
        when=time.monotonic(),
        secondary=error is not None and error_text.is_secondary(error),
    )
    pipe.send_json(FAILURE, report.to_dict())
    return exit_code or 1


def _explain_load_error(function: str, error: BaseException) -> str:
    """Explain why the function could not be unpickled, and what to do."""
    text = f"could not load {function}: {error_text.format_error(error)}."
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        return (
            f"{text} The driver has the module {top!r}, but this host doesn't. If it is your own, send it to the "
            "workers: sc.addPyFile(...) or spark.addArtifact(..., pyfile=True) for a file or zip, or "
            f"cloudpickle.register_pickle_by_value({top}) before run(). If it is a package, install it there, too."
        )
    if isinstance(error, (AttributeError, ImportError)):
        return (
            f"{text} A module here has a different version than on the driver, or is a script that only the driver "
            "runs."
        )
    return text
