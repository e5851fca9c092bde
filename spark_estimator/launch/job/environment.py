"""The environment in which a worker starts: threads for its share of the cores, and a malloc that keeps memory.

Numeric libraries otherwise start a thread for each core in each rank, and glibc gives the memory of large gradients
back to the system at the end of a step, to fault it in again in the next. Both are read when a process starts, so they
have to be in its environment before. What the user has set is never overridden; ``python -m spark_estimator env``
shows the values in effect and their reasons.

Memory that stays with a process grows to its peak and not beyond. ``ctypes.CDLL(None).malloc_trim(0)`` gives it back.
A function's forks share it; programs that a function starts have their own malloc again; the command of ``horovodrun``
and what that starts have this one's settings, since they are in the environment.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass

from spark_estimator.collectives import torch_variables
from spark_estimator.collectives.cores import count_available_cores
from spark_estimator.env import (
    ATTEMPT_VARIABLE,
    FEED_FD_VARIABLE,
    JOB_KEY_VARIABLE,
    JOB_VARIABLE,
    JOINED_VARIABLE,
    PROGRESS_FD_VARIABLE,
    RENDEZVOUS_FD_VARIABLE,
    WORKER_CHOICES_VARIABLE,
    Decision,
    Settings,
    align_columns,
)

_MALLOC_SWITCH = "SPARK_ESTIMATOR_WORKER_MALLOC"
_THREADS_SWITCH = "SPARK_ESTIMATOR_WORKER_THREADS"

OMP = "OMP_NUM_THREADS"
# These two take OMP_NUM_THREADS where they are not set themselves.
_LIKE_OMP = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# TF_NUM_INTEROP_THREADS is left alone: with a single such thread, ops that block can wait for each other for ever.
_TENSORFLOW = "TF_NUM_INTRAOP_THREADS"

_TUNABLES = "GLIBC_TUNABLES"
_KEPT_BELOW = 1 << 30
_NEVER = 1 << 40
_MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
SET_BY_YOU = "set by you"

# With these variables a process would talk to the Java gateway of the driver's own Spark session.
_OF_THE_DRIVER = {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"}

# The launcher sets these for each rank; they are never forwarded from the driver's own environment.
_OF_ONE_RANK = {
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    RENDEZVOUS_FD_VARIABLE,
    PROGRESS_FD_VARIABLE,
    JOB_VARIABLE,
    FEED_FD_VARIABLE,
    WORKER_CHOICES_VARIABLE,
    ATTEMPT_VARIABLE,
    JOINED_VARIABLE,
    JOB_KEY_VARIABLE,  # a secret, and of no use to ranks that get a key from their launcher
    *torch_variables.NAMES,
}
_FORWARDED = ("HOROVOD_", "SPARK_ESTIMATOR_", "NCCL_")
# A function that was written with Keras on the driver means the same Keras on the ranks.
_OF_KERAS = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
_OF_ONE_PROCESS = ("CONDA", "CUDA_VISIBLE_DEVICES", "LD_", "PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV", "_")
# Not sent to ranks on other hosts over ssh.
_OF_ONE_HOST = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "TMPDIR", "TEMP", "TMP"),
        *("PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "WINDOWID", "DISPLAY", "XAUTHORITY", "_"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MANAGERPID"),
    }
)
_OF_ONE_LOGIN = ("SSH_", "XDG_", "DBUS_", "WAYLAND_", "BASH_FUNC_", "TMUX", "SUDO_", "GPG_")


@dataclass(frozen=True)
class Choice:
    """One variable of a worker's environment.

    Attributes:
        variable: its name.
        value: "" where it is not set.
        why: on what grounds, for people.
        chosen: by the launcher; False: it is as the user left it.
    """

    variable: str
    value: str
    why: str
    chosen: bool = True


def decide_host_threads(ranks: int) -> Decision:
    """Return the threads of each of `ranks` processes that share the cores of this host; at least 1."""
    cores = count_available_cores()
    reason = f"{cores} core{'s' * (cores != 1)} for {ranks} rank{'s' * (ranks != 1)} on this host"
    return Decision(max(1, cores // ranks), reason)


def decide_task_threads(cpus: int) -> Decision:
    """Return the threads of a rank in a Spark task with `cpus` CPUs."""
    return Decision(max(1, cpus), "from spark.task.cpus")


def make_worker_environment(
    around: Mapping[str, str], variables: Mapping[str, str], share: Decision, *, spark: bool = False
) -> dict[str, str]:
    """Return `variables`, and this package's defaults for variables that are not among them.

    Args:
        around: the environment that the worker inherits.
        share: the threads that are its own.
        spark: `around` is a Spark task's, in which Spark has set OMP_NUM_THREADS unless the user did.
    """
    environ = {**remove_choices(around), **variables}
    if spark and OMP not in variables and environ.get(OMP) == str(share.value):
        del environ[OMP]
    decided = choose_variables(environ, share)
    record = json.dumps([dataclasses.astuple(choice) for choice in decided])
    return {
        **variables,
        **{choice.variable: choice.value for choice in decided if choice.chosen},
        WORKER_CHOICES_VARIABLE: record,
    }


def select_forwarded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the driver's variables that apply to workers on any host: Horovod's, this package's, NCCL's, Keras'."""
    return {
        name: value
        for name, value in environ.items()
        if (name.startswith(_FORWARDED) and name not in _OF_ONE_RANK) or name in _OF_KERAS
    }


def check_environment(environ: Mapping[str, str] | None) -> dict[str, str]:
    """Check a user's variables for the ranks; return them without the variables of a single process.

    They are often a copy of ``os.environ``.

    Raises:
        TypeError: `environ` is not a mapping from str to str.
        ValueError: a name or a value can't be an environment variable.
    """
    if environ is None:
        return {}
    if not isinstance(environ, Mapping):
        raise TypeError(f"env must be a dict of variables, such as {{'NAME': 'value'}}; got {environ!r}.")
    for name, value in environ.items():
        if (type(name), type(value)) != (str, str):
            raise TypeError(f"env must map str to str; got {name!r}: {value!r}.")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env: {name!r}={value!r} is not a valid environment variable.")
    return {name: value for name, value in remove_choices(environ).items() if name not in _OF_ONE_RANK | _OF_THE_DRIVER}


def exported_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the launcher's variables that mean the same on another host with the same files."""
    return check_environment(
        {
            name: value
            for name, value in environ.items()
            if name and name not in _OF_ONE_HOST and not name.startswith(_OF_ONE_LOGIN)
        }
    )


def select_inherited_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Select the driver's variables that may hold on executors that don't set them: none of its own process."""
    return {
        name: value
        for name, value in remove_choices(environ).items()
        if not name.startswith(_OF_ONE_PROCESS) and name not in _OF_ONE_RANK
    }


def add_own_python(path: str) -> str:
    """Return `path` with this interpreter's folder first, whose ``python`` other programs then find."""
    folder = os.path.dirname(sys.executable)
    if shutil.which("python", path=path) == os.path.join(folder, "python") or folder in path.split(os.pathsep)[:1]:
        return path
    return os.pathsep.join([folder, path])


def choose_variables(environ: Mapping[str, str], share: Decision) -> list[Choice]:
    """Choose the variables of a worker that would otherwise start in `environ`; return all that were considered."""
    switches = {name: environ.get(name, "") for name in (_THREADS_SWITCH, _MALLOC_SWITCH)}
    settings = Settings.read(switches)
    if settings.worker_threads is not None:
        share = Decision(settings.worker_threads, f"from {_THREADS_SWITCH}")
    return _choose_threads(environ, share) + _choose_malloc(environ, keep=settings.worker_malloc == "keep")


def _choose_threads(environ: Mapping[str, str], share: Decision) -> list[Choice]:
    if share.value == 0:
        return [_keep_value(environ, name, f"{_THREADS_SWITCH}=0") for name in (OMP, *_LIKE_OMP, _TENSORFLOW)]
    number, why = str(share.value), share.why
    omp = environ.get(OMP, "")
    decided = [Choice(OMP, omp, SET_BY_YOU, chosen=False) if omp else Choice(OMP, number, why)]
    for name in _LIKE_OMP:
        if environ.get(name) or omp:
            decided.append(_keep_value(environ, name, f"follows {OMP}"))
        else:
            decided.append(Choice(name, number, why))
    if environ.get(_TENSORFLOW) or (omp and not omp.isdecimal()):
        decided.append(_keep_value(environ, _TENSORFLOW, f"{OMP} isn't a single number"))
    else:
        decided.append(Choice(_TENSORFLOW, omp or number, f"as {OMP}, which you set" if omp else why))
    return decided


def _choose_malloc(environ: Mapping[str, str], *, keep: bool) -> list[Choice]:
    glibc = _read_glibc_version()
    if glibc is None:
        return []
    # Larger blocks, as data sets may be and gradients are not, still go back to the system when they are freed. Glibc
    # accepts such a threshold since 2.36. An older glibc refuses it, and would then be slower than with its defaults,
    # so there no block is returned.
    mapped = ("MALLOC_MMAP_THRESHOLD_", _KEPT_BELOW) if glibc >= (2, 36) else ("MALLOC_MMAP_MAX_", 0)
    variables = {mapped[0]: str(mapped[1]), "MALLOC_TRIM_THRESHOLD_": str(_NEVER), _TUNABLES: "glibc.malloc.hugetlb=1"}
    user_set = [name for name in _MALLOC_VARIABLES if environ.get(name)]
    if "glibc.malloc." in environ.get(_TUNABLES, ""):
        user_set.append(_TUNABLES)
    if not keep:
        reason = f"{_MALLOC_SWITCH}=system"
    elif user_set:
        reason = f"you set {', '.join(user_set)}"
    elif "malloc" in environ.get("LD_PRELOAD", ""):
        reason = "LD_PRELOAD brings another malloc"
    else:
        return [
            # The user's other tunables of glibc are kept.
            _keep_value(environ, name, "") if environ.get(name) else Choice(name, value, "default")
            for name, value in variables.items()
        ]
    return [_keep_value(environ, name, reason) for name in dict.fromkeys([*user_set, *variables])]


def _keep_value(environ: Mapping[str, str], name: str, why: str) -> Choice:
    value = environ.get(name, "")
    return Choice(name, value, SET_BY_YOU if value else why, chosen=False)


def _read_glibc_version() -> tuple[int, ...] | None:
    """Return the version of the C library, if it is glibc."""
    with suppress(AttributeError, ValueError, OSError):  # other systems do not know the name
        version = re.fullmatch(r"glibc (\d+)\.(\d+).*", os.confstr("CS_GNU_LIBC_VERSION") or "")
        return None if version is None else (int(version[1]), int(version[2]))
    return None


def read_choices(environ: Mapping[str, str]) -> list[Choice]:
    """Return the choices of this process's launcher for it; empty if there was no launcher."""
    text = environ.get(WORKER_CHOICES_VARIABLE) or "[]"
    with suppress(ValueError, TypeError):  # it may have been written by hand
        return [
            Choice(str(variable), str(value), str(why), chosen is True)
            for variable, value, why, chosen in json.loads(text)
        ]
    return []


def remove_choices(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what a launcher has chosen for this process: the user hasn't set it for another job."""
    remaining = dict(environ)
    for choice in read_choices(environ):
        if choice.chosen and remaining.get(choice.variable) == choice.value:
            del remaining[choice.variable]
    remaining.pop(WORKER_CHOICES_VARIABLE, None)
    return remaining


def forget_malloc(environ: MutableMapping[str, str]) -> None:
    """Remove the launcher's malloc settings from the environment, so that child processes don't inherit them."""
    for choice in read_choices(environ):
        name = choice.variable
        if choice.chosen and name in (*_MALLOC_VARIABLES, _TUNABLES) and environ.get(name) == choice.value:
            del environ[name]


def describe_choices(environ: Mapping[str, str], ranks: int) -> str:
    """Describe for people what this worker was started with, or what each of `ranks` workers on this host would be.

    Raises:
        ValueError: one of our switches has a value that cannot be used.
    """
    if decided := read_choices(environ):
        title = "This worker was started with:"
    else:
        decided = choose_variables(environ, decide_host_threads(ranks))
        title = "A worker on this host starts with (in a Spark task, threads come from spark.task.cpus):"
    return "\n".join(
        [title, *align_columns([(choice.variable, choice.value or "-", choice.why) for choice in decided])]
    )
