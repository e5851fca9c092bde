"""Every error that spark_estimator raises on purpose, named by who must act.

::

    Exception
    ├── ValueError
    │   ├── NotInitializedError        call init() first (Horovod raises ValueError here, so do we)
    │   └── DuplicateNameError         a request of that name is still in flight on this rank
    └── RuntimeError
        ├── HostsUpdatedInterrupt      elastic: the job is about to be made of other ranks (Horovod's name)
        ├── SparkEstimatorError        root of what is not Horovod's
        │   ├── PreflightError         refused before the job starts: the text says what to change
        │   │   ├── NotEnoughSlotsError
        │   │   ├── PicklingError      the function, an argument or a captured variable cannot travel
        │   │   ├── PythonEnvironmentError   executors run another Python, or lack a package
        │   │   ├── ForeignLauncherError     mpirun, srun, torchrun, ... started this process as one of several
        │   │   └── JavaNotFoundError
        │   ├── JobFailedError         the job started and failed as a whole
        │   │   ├── StartTimeoutError  not all ranks began in time; the text says what holds them up
        │   │   ├── JobTimeoutError    it took longer than the caller's `timeout`; its ranks were ended
        │   │   ├── JobCancelledError  somebody cancelled it in Spark: a job group, a tag, the web page
        │   │   ├── WorkerFailedError  one rank failed first: its traceback is the __cause__
        │   │   └── ResultError        the ranks ended well but the value cannot be had
        │   ├── DataError              a column or a value that cannot be trained on (a ValueError, too)
        │   ├── NotElasticError        the job cannot be made of other ranks: it was not started as an elastic one
        │   ├── AuthenticationError    a connection did not know the job's key
        │   └── NativeLibraryError     the engine's library is missing or of another version
        └── HorovodInternalError       a collective failed (Horovod's name; elastic mode recovers from it)
            ├── MismatchError          the ranks disagree about one request; the ring is still usable
            ├── PeerLostError          a peer died or its link broke; this engine is finished
            └── ShutDownError          this rank or a peer has left in good order; this engine is finished

An error's text tells what failed, on which rank and host, with which value, and what to do about it.
"""

from __future__ import annotations


class NotInitializedError(ValueError):
    """A question about the job was asked before ``init()`` or after ``shutdown()``."""

    def __init__(self) -> None:
        super().__init__("Horovod has not been initialized; use hvd.init().")


class DuplicateNameError(ValueError):
    """A second request was submitted under a name that is still in flight on this rank."""


class HorovodInternalError(RuntimeError):
    """A collective operation failed."""


class MismatchError(HorovodInternalError):
    """The ranks submitted contradictory requests under one name. All ranks get it; later requests work."""


class PeerLostError(HorovodInternalError):
    """Another rank died or cannot be reached. Nothing more can be done with this engine but ``shutdown()``."""


class ShutDownError(HorovodInternalError):
    """This rank, or another, left the job while the request was waiting."""


class HostsUpdatedInterrupt(RuntimeError):
    """Elastic: the job is about to be made of other ranks; ``elastic.run`` handles it, with the state as it is.

    Attributes:
        skip_sync: the ranks that stay need not take over one another's state: ranks only go, and none comes.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the job is about to be made of other ranks")
        self.skip_sync = skip_sync


class SparkEstimatorError(RuntimeError):
    """Root of the errors that Horovod has no name for."""


class DataError(SparkEstimatorError, ValueError):
    """A column or a value cannot be trained on, or predicted from. The text names it and says what to do."""


class PreflightError(SparkEstimatorError):
    """The job was refused before it started; nothing was run and nothing was lost."""


class NotEnoughSlotsError(PreflightError):
    """More ranks were asked for than tasks can run at the same time."""


class PicklingError(PreflightError):
    """Something that must travel to the workers cannot be pickled; the text names the variable."""


class PythonEnvironmentError(PreflightError):
    """The workers' Python cannot run the job: another version, or a missing package."""


class ForeignLauncherError(PreflightError):
    """Another launcher started this process as one of several, and ``init()`` can't join their job."""


class JavaNotFoundError(PreflightError):
    """Spark needs Java 17 or later and none was found."""


class JobFailedError(SparkEstimatorError):
    """The job was started and did not end well.

    Attributes:
        kind: "raised", "exited", "killed", "lost" (its host or executor is gone), "not started", "not loaded" (the
            function), "bad result"; '' when no single rank is to blame.
        rank: the rank that failed first; -1 when it failed before it had one, or when no single rank is to blame.
        host: the host that it ran on; '' when no rank is to blame.
        exitcode: its exit status; negative is the number of the signal that killed it; None when it raised an
            exception, or when nobody could see its end.
        traceback: its own Python stack, as it printed it; '' when it left none.
        log_tail: the last lines (40 at most) that it printed on stdout and stderr; '' when they are not known.
        earlier: the errors of the attempts before this one, first to last, where the job was started anew.
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
        earlier: tuple[JobFailedError, ...] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.rank = rank
        self.host = host
        self.exitcode = exitcode
        self.traceback = traceback
        self.log_tail = log_tail
        self.earlier = earlier

    @property
    def signal(self) -> int | None:
        """The number of the signal that killed the rank; None when none did."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None


class StartTimeoutError(JobFailedError):
    """Not all ranks had begun when the time for that was over; those that had were ended."""


class JobTimeoutError(JobFailedError):
    """The job had not ended when the time that its caller gave it was over; its ranks were ended."""


class JobCancelledError(JobFailedError):
    """Somebody cancelled the job in Spark, by its job group, its tag or the web page; its ranks are ended."""


class WorkerFailedError(JobFailedError):
    """One rank failed, and before all others. ``__cause__`` carries that rank's own traceback."""


class RemoteTraceback(Exception):
    """Stands in for the exception that a rank raised; its text is that rank's traceback, as the rank printed it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


class ResultError(JobFailedError):
    """All ranks ended well, but the return value could not be pickled, was too large, or did not arrive whole."""


class NotElasticError(SparkEstimatorError):
    """A new round was asked for in a job whose launcher gives none."""


class AuthenticationError(SparkEstimatorError):
    """A connection's other end could not show that it knows the job's key."""


class NativeLibraryError(SparkEstimatorError):
    """The engine's shared library cannot be loaded, or is of another ABI version than this package."""
