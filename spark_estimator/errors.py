"""The errors that spark_estimator raises. Each class shows what failed and who must act.

::

    Exception
    ├── ValueError
    │   ├── NotInitializedError        call init() first (a ValueError, as in Horovod)
    │   └── DuplicateNameError         a request with this name is still in progress on this rank
    └── RuntimeError
        ├── HostsUpdatedInterrupt      elastic: the set of ranks is about to change (Horovod's name)
        ├── SparkEstimatorError        base class of the errors that Horovod doesn't have
        │   ├── PreflightError         the job was refused before its start; change what the message names
        │   │   ├── NotEnoughSlotsError
        │   │   ├── PicklingError      the function, an argument or a captured variable can't be pickled
        │   │   ├── PythonEnvironmentError   executors run another Python version, or lack a package
        │   │   ├── ForeignLauncherError     mpirun, srun, torchrun, ... started this process in a job of several
        │   │   └── JavaNotFoundError
        │   ├── JobFailedError         the job started and failed
        │   │   ├── StartTimeoutError  not all ranks started in time; the message names the cause
        │   │   ├── JobTimeoutError    the job took longer than `timeout`, and its ranks were stopped
        │   │   ├── JobCancelledError  a user cancelled the job in Spark: job group, tag or web UI
        │   │   ├── WorkerFailedError  a rank failed; the first failed rank's traceback is the __cause__
        │   │   └── ResultError        all ranks succeeded, but a return value was lost
        │   ├── DataError              a column or value can't be used for training or prediction
        │   ├── DeviceError            a task can't predict on its GPU: it isn't there, or its memory is full
        │   ├── NotElasticError        the job can't change its ranks: it wasn't started as an elastic job
        │   ├── AuthenticationError    the other end of a connection didn't prove that it has the job's key
        │   ├── EncryptionUnavailableError   the job encrypts its connections, and this host can't
        │   └── NativeLibraryError     the engine's library is missing or has another version
        └── HorovodInternalError       a collective failed (Horovod's name; elastic mode recovers from it)
            ├── MismatchError          ranks submitted different requests under one name; later ones work
            ├── PeerLostError          a peer died or its connection broke; this engine can't be used again
            └── ShutDownError          this rank or a peer left normally; this engine can't be used again

A message names what failed, the rank and host, the value, and what to do. Its last line begins with ``more:`` and shows
where the cause and the remedy are explained: ``errors.md`` in this folder has a section on each class, from which
``python -m spark_estimator explain CODE`` and the documentation's page on errors are made.
"""

from __future__ import annotations

import re

#: The address of the published documentation, without a slash at its end. If it is set, messages end with the address
#: of the section on their class; empty: the documentation is not published, and messages end with a command.
DOCUMENTATION_URL = ""
_LINK = re.compile(r"(?:^|\n)more: (?:python -m spark_estimator explain [A-Z_]+|\S+/errors\.html#[a-z]+)")

# How a traceback prints an error of these classes; Spark may have cut the text off.
_OF_TASK = re.compile(r"\bspark_estimator\.errors\.(DataError|DeviceError): ((?s:.*?)(?=\nmore: )|.*)")


def get_code(kind: type[BaseException]) -> str:
    """Return the code of an error class, such as ``WORKER_FAILED``; a class derived elsewhere has its base's."""
    name = _find_documented_class(kind).__name__.removesuffix("Error").removesuffix("Interrupt")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def _find_documented_class(kind: type[BaseException]) -> type[BaseException]:
    return next(base for base in kind.__mro__ if base.__module__ == __name__)


def find_class(name: str) -> type[BaseException] | None:
    """Return the error class of this module with this name; None: it has none."""
    kind = globals().get(name)
    is_error = isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__ == __name__
    return kind if is_error else None


def remove_links(text: str) -> str:
    """Return the text without the lines that begin with ``more:``, to make it a part of another text."""
    return _LINK.sub("", text)


def _add_link(self: BaseException) -> str:
    """Return the message, and where its error, or the rank's error that caused it, is explained.

    Messages of other errors inside of it lose their last lines.
    """
    kind = find_class(getattr(self, "cause_class", "")) or _find_documented_class(type(self))
    where = f"python -m spark_estimator explain {get_code(kind)}"
    if DOCUMENTATION_URL:
        where = f"{DOCUMENTATION_URL}/errors.html#{kind.__name__.lower()}"
    return f"{remove_links(BaseException.__str__(self))}\nmore: {where}"


def find_task_error(error: BaseException) -> SparkEstimatorError | None:
    """Return the `DataError` or `DeviceError` that a task of Spark, or a rank, has raised; `error` is its cause.

    Args:
        error: Spark's, whose text has the traceback of its Python worker; or that of a job, which has its rank's.

    Returns:
        None: the traceback names neither.
    """
    of_rank = error if isinstance(error, JobFailedError) else None
    matches = _OF_TASK.findall(str(error) if of_rank is None else of_rank.traceback)
    if not matches:
        return None
    name, text = matches[-1]  # those before are its causes
    text = text.strip() if of_rank is None else f"rank {of_rank.rank} (host {of_rank.host}): {text.strip()}"
    result: SparkEstimatorError = (DataError if name == DataError.__name__ else DeviceError)(text)
    result.__cause__ = error
    return result


class NotInitializedError(ValueError):
    """A function that needs a running job was called before ``init()`` or after ``shutdown()``."""

    __str__ = _add_link

    def __init__(self) -> None:
        super().__init__(
            "Horovod has not been initialized; use hvd.init(). In the driver program of HorovodRunner or an estimator "
            "there is no rank: call it in the function that the ranks run."
        )


class DuplicateNameError(ValueError):
    """A request was submitted under the name of a request that is still in progress on this rank. Use another name."""

    __str__ = _add_link


class HorovodInternalError(RuntimeError):
    """A collective operation failed. In an elastic job, ``elastic.run`` recovers from it."""

    __str__ = _add_link


class MismatchError(HorovodInternalError):
    """The ranks submitted different requests under one name. All ranks raise this error; later requests work."""


class PeerLostError(HorovodInternalError):
    """Another rank died or is unreachable. The engine can't be used again: call ``shutdown()``."""


class ShutDownError(HorovodInternalError):
    """This rank or another rank left the job while the request was waiting. The engine can't be used again."""


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic: the set of ranks is about to change. ``elastic.run`` handles it and keeps the state as it is.

    Attributes:
        skip_sync: True if ranks only leave and none joins, so that the remaining ranks don't have to synchronize.
    """

    __str__ = _add_link

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of ranks of this job is about to change")
        self.skip_sync = skip_sync


class SparkEstimatorError(RuntimeError):
    """Base class of the errors that Horovod doesn't have."""

    __str__ = _add_link


class DataError(SparkEstimatorError, ValueError):
    """A column or value can't be used for training or prediction. The message names it and the remedy."""


class DeviceError(SparkEstimatorError):
    """A task can't predict on its GPU. The message names the task, the device and the remedy."""


class PreflightError(SparkEstimatorError):
    """The job was refused before its start; no code of the job ran. The message names what to change."""


class NotEnoughSlotsError(PreflightError):
    """The job needs more ranks than Spark can run tasks at the same time."""


class PicklingError(PreflightError):
    """The function, an argument or a captured variable can't be pickled for the workers. The message names it."""


class PythonEnvironmentError(PreflightError):
    """The workers' Python can't run the job: it has another version, or a package is missing."""


class ForeignLauncherError(PreflightError):
    """Another launcher started this process as one of several, and ``init()`` can't join them to one job."""


class JavaNotFoundError(PreflightError):
    """Spark needs Java 17 or later, and none is installed."""


class JobFailedError(SparkEstimatorError):
    """The job started and failed.

    Attributes:
        kind: how the first failed rank failed: "raised", "exited", "killed", "lost" (its host or executor was lost),
            "not started", "not loaded" (it couldn't load the function), "bad result"; '' if no single rank failed.
        rank: the rank that failed first; -1 if it failed before it had a rank, or if no single rank failed.
        host: the host of that rank; '' if no single rank failed.
        exitcode: its exit status; negative: the number of the signal that killed it; None if it raised an exception,
            or if its status is unknown.
        traceback: its Python traceback, as it printed it; '' if there is none.
        log_tail: the last lines (40 at most) that it printed on stdout and stderr; '' if they are unknown.
        cause_class: the name of the class of this module that the rank's error is of, such as ``"DataError"``; '' if it
            is another error or unknown. The last line of the message explains that class.
        earlier: the errors of earlier attempts, first to last, if the job was restarted.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "",
        rank: int = -1,
        host: str = "",
        exitcode: int | None = None,
        traceback: str = "",
        log_tail: str = "",
        cause_class: str = "",
        earlier: tuple[JobFailedError, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rank = rank
        self.host = host
        self.exitcode = exitcode
        self.traceback = traceback
        self.log_tail = log_tail
        self.cause_class = cause_class
        self.earlier = earlier

    @property
    def signal(self) -> int | None:
        """Return the number of the signal that killed the rank; None if no signal killed it."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None


class StartTimeoutError(JobFailedError):
    """Not all ranks started within the start timeout. Those that had started were stopped."""


class JobTimeoutError(JobFailedError):
    """The job took longer than the caller's ``timeout``. Its ranks were stopped."""


class JobCancelledError(JobFailedError):
    """A user cancelled the job in Spark, by its job group, its tag or the web UI. Its ranks were stopped."""


class WorkerFailedError(JobFailedError):
    """A rank failed. The error describes the rank that failed first; ``__cause__`` holds that rank's traceback."""


class RemoteTraceback(Exception):
    """The ``__cause__`` of `WorkerFailedError`: its text is the traceback that the failed rank printed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class ResultError(JobFailedError):
    """All ranks succeeded, but a return value couldn't be pickled, was too large, or arrived incomplete."""


class NotElasticError(SparkEstimatorError):
    """The job can't change its ranks, because it wasn't started as an elastic job. Start it as one."""


class AuthenticationError(SparkEstimatorError):
    """The other end of a connection didn't prove that it has the job's key."""


class EncryptionUnavailableError(SparkEstimatorError):
    """The job encrypts its connections, and this host can't: OpenSSL's library is missing or too old."""


class NativeLibraryError(SparkEstimatorError):
    """The engine's shared library can't be loaded, or its ABI version differs from this package's."""
