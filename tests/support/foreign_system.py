"""Lets the package see another operating system than this Linux: `imitate` changes what its modules import.

Only modules of spark_estimator see it; Spark, PyTorch and all others keep the real one. Modules that only POSIX systems
have cannot be imported, names are missing, calls that Windows refuses are refused, and there is no ``/proc``.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import importlib.util
import os
import select
import signal
import socket
import sys
import threading
import time
from types import FrameType, ModuleType
from typing import Any

_PACKAGE = os.path.dirname(str(importlib.util.find_spec("spark_estimator").origin))  # type: ignore[union-attr]
_STANDARD = os.path.dirname(os.__file__)
_O_BINARY = 0x8000

# Windows has none of these; other systems than Linux lack the names below.
POSIX_MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog", "posix", "curses", "readline"}
_LINUX_ONLY = {
    "os": """memfd_create pidfd_open sched_getaffinity sched_setaffinity eventfd splice copy_file_range setns unshare
        getxattr setxattr listxattr removexattr posix_fadvise posix_fallocate fdatasync sched_getscheduler O_TMPFILE""",
    "socket": "SO_PEERCRED AF_NETLINK AF_PACKET TCP_USER_TIMEOUT SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE",
    "signal": "pidfd_send_signal SIGRTMIN SIGRTMAX SIGPOLL SIGPWR SIGSTKFLT sigtimedwait sigwaitinfo",
    "select": "epoll EPOLLIN EPOLLOUT",
    "fcntl": "F_ADD_SEALS F_GET_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK",
}
_POSIX_ONLY = {
    "os": """fork forkpty register_at_fork getuid geteuid getgid getegid getgroups setuid setsid getsid killpg getpgid
        getpgrp setpgid setpgrp uname statvfs fstatvfs sysconf confstr pathconf mkfifo mknod getloadavg chown fchown
        lchown chroot nice wait wait3 wait4 waitid WIFEXITED WEXITSTATUS WIFSIGNALED WTERMSIG WNOHANG posix_spawn
        pread pwrite preadv pwritev readv writev sendfile lockf sync openpty ttyname ctermid tcgetpgrp pipe2 fchdir
        fchmod lchmod O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_SYNC O_DSYNC O_NOCTTY O_PATH getresuid""",
    "socket": "AF_UNIX SO_REUSEPORT MSG_NOSIGNAL MSG_DONTWAIT MSG_WAITALL send_fds recv_fds sethostname",
    "signal": """SIGKILL SIGHUP SIGCHLD SIGPIPE SIGALRM SIGUSR1 SIGUSR2 SIGSTOP SIGCONT SIGQUIT SIGTSTP SIGWINCH SIGURG
        SIG_BLOCK SIG_UNBLOCK SIG_SETMASK pthread_sigmask pthread_kill sigwait sigpending setitimer alarm pause
        siginterrupt ITIMER_REAL""",
    "select": "poll POLLIN POLLOUT POLLHUP POLLERR",
    "time": "tzset clock_gettime CLOCK_MONOTONIC CLOCK_REALTIME pthread_getcpuclockid",
}
# Where neither system has anything.
_ABSENT_FOLDERS = ("/proc/", "/sys/", "/dev/shm")
_FORBIDDEN = set('<>:"|?*')  # in names of files, on Windows
_WATCHED = {"open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.rmdir", "os.mkdir"}
_text_descriptors: set[int] = set()


class _Twin(ModuleType):
    """A module as another system has it; everything else is the real module's."""

    def __init__(self, real: ModuleType, absent: set[str], changed: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        object.__getattribute__(self, "__dict__").update(_real=real, _absent=absent, _changed=changed)

    def __getattribute__(self, name: str) -> Any:
        state = object.__getattribute__(self, "__dict__")
        if name.startswith(("__dict__", "__reduce")) or "_absent" not in state:
            return object.__getattribute__(self, name)
        if name in state["_absent"]:
            raise AttributeError(f"module {state['_real'].__name__!r} has no attribute {name!r} on this system")
        return state["_changed"][name] if name in state["_changed"] else getattr(state["_real"], name)

    def __reduce__(self) -> Any:
        return importlib.import_module, (object.__getattribute__(self, "__dict__")["_real"].__name__,)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "__dict__")["_real"], name, value)


def _open_on_windows(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "a folder cannot be opened on Windows", str(path))
    descriptor = os.open(path, flags & ~_O_BINARY, mode)
    (_text_descriptors.discard if flags & _O_BINARY else _text_descriptors.add)(descriptor)
    return descriptor


def _write_on_windows(descriptor: int, content: Any) -> int:
    assert descriptor not in _text_descriptors, "without os.O_BINARY, Windows writes each line's end as two bytes"
    return os.write(descriptor, content)


def _fsync_on_windows(descriptor: int) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "what is open to be read only cannot be synchronized on Windows")
    os.fsync(descriptor)


def _rename_on_windows(source: Any, target: Any) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "the new name exists", str(source), None, str(target))
    os.rename(source, target)


def _replace_on_windows(source: Any, target: Any) -> None:
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "a folder cannot be replaced on Windows", str(target))
    os.replace(source, target)


def _refuse_no_name(real: Any) -> Any:
    class Library(real):  # type: ignore[misc]
        def __init__(self, name: Any, *arguments: Any, **more: Any) -> None:
            if name is None:
                raise TypeError("LoadLibrary() argument 1 must be str, not None")
            super().__init__(name, *arguments, **more)

    return Library


_ON_WINDOWS: dict[str, dict[str, Any]] = {
    "os": {
        "name": "nt",
        "O_BINARY": _O_BINARY,
        "open": _open_on_windows,
        "write": _write_on_windows,
        "fsync": _fsync_on_windows,
        "rename": _rename_on_windows,
        "replace": _replace_on_windows,
        "supports_dir_fd": set(),
    },
    "sys": {"platform": "win32"},
    "ctypes": {"CDLL": _refuse_no_name(ctypes.CDLL)},
}
_ON_MAC = {"sys": {"platform": "darwin"}}
_REAL = {module.__name__: module for module in (os, sys, signal, socket, select, time, ctypes, fcntl)}


def _is_called_by_package(frame: FrameType | None) -> bool:
    """Whether the package's code, perhaps by way of the standard library, makes a call."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            return True
        if "site-packages" in file or not (file.startswith((_STANDARD, "<frozen")) or file == __file__):
            return False
        frame = frame.f_back
    return False


def _is_open(path: str) -> bool:
    """Whether this process holds a file, or one below a folder, open."""
    path = os.path.realpath(path)
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if name == path or name.startswith(path + "/"):
            return True
    return False


def imitate(system: str, paths: ModuleType | None = None) -> None:
    """Show "windows" or "mac" to every module of the package that is imported from now on.

    Args:
        paths: the package's `os.path`: ntpath for paths of Windows, with which no file can be opened here.
    """
    loaded = [name for name in sys.modules if name.split(".")[0] == "spark_estimator"]
    assert not loaded, f"already imported: {loaded}"
    is_windows = system == "windows"
    absent = {name: set(text.split()) for name, text in _LINUX_ONLY.items()}
    for name, text in _POSIX_ONLY.items() if is_windows else ():
        absent.setdefault(name, set()).update(text.split())
    changed = _ON_WINDOWS if is_windows else _ON_MAC
    twins = {name: _Twin(real, absent.get(name, set()), changed.get(name, {})) for name, real in _REAL.items()}
    if paths is not None:
        twins["os"] = _Twin(os, absent["os"], {**changed["os"], "path": paths, "sep": paths.sep})
    real_import = builtins.__import__

    def import_module(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level == 0 and globals and str(globals.get("__name__")).split(".")[0] == "spark_estimator":
            top = name.split(".")[0]
            if is_windows and top in POSIX_MODULES:
                raise ModuleNotFoundError(f"No module named {top!r}: it is not on this system", name=top)
            if name in twins:
                return twins[name]
        return real_import(name, globals, locals, fromlist, level)

    busy = threading.local()

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if hasattr(busy, "now") or event not in (
            "open",
            "os.listdir",
            "os.scandir",
            "os.remove",
            "os.rename",
            "os.rmdir",
            "os.mkdir",
        ):
            return
        path = arguments[0]
        if not isinstance(path, (str, os.PathLike)):
            return
        path = str(path)
        busy.now = True
        try:
            if not _is_called_by_package(sys._getframe(1)):
                return
            if path.startswith(_ABSENT_FOLDERS):
                raise FileNotFoundError(errno.ENOENT, "not on this system", path)
            if is_windows and event in ("open", "os.mkdir") and _FORBIDDEN & set(path):
                raise OSError(errno.EINVAL, "Windows has no such names", path)
            if is_windows and event in ("os.remove", "os.rename") and _is_open(path):
                raise PermissionError(errno.EACCES, "another handle is open", path)
        finally:
            del busy.now

    sys.addaudithook(refuse)
    builtins.__import__ = import_module
