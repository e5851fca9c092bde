"""HDFS as a file system of fsspec's: by PyPI's hdfs-native, which needs no Java, or by pyarrow over libhdfs.

With hdfs-native each call ends: after `_LIMIT` it raises, and an absent name node is tried again for about a minute.
Errors have one line, with the path. A child of ``fork`` loads the library again, since the threads of its parent's copy
are not there.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any

from spark_estimator.errors import PreflightError
from spark_estimator.store.hadoop import list_configuration_folders

_LIMIT = timedelta(minutes=3)
# What one call reads or writes, so that a large file does not take longer than the limit.
_PIECE = 16 << 20
# Waits of 1, 2, 4, 8 and then 15 seconds, for a name node that is away.
_SETTINGS = {"dfs.client.failover.max.attempts": "6"}
# hdfs-native takes them from the process's variables, at each connection.
_VARIABLES = {"user": "HADOOP_USER_NAME", "kerb_ticket": "KRB5CCNAME"}
_TOKEN_FILE = "HADOOP_TOKEN_FILE_LOCATION"
_NOT_MOUNTED = "hdfs://this-path-is-not-mounted.invalid:1"
_JAVA_ERROR = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*)"\)', re.DOTALL)
# By process: what a process has made does not work in its children.
_filesystems: dict[tuple[Any, ...], Any] = {}
_libraries: dict[int, Any] = {}


def check_client(url: str) -> None:
    """Raise PreflightError: this machine has neither hdfs-native nor libhdfs."""
    folders = os.environ.get("ARROW_LIBHDFS_DIR", "."), os.environ.get("HADOOP_HOME", ".") + "/lib/native"
    if importlib.util.find_spec("hdfs_native") is None and not (
        any(os.path.exists(f"{folder}/libhdfs.so") for folder in folders) or ctypes.util.find_library("hdfs")
    ):
        raise PreflightError(
            f"{url}: there is no client of HDFS here. Run pip install hdfs-native, on the driver and on all executors, "
            "or install Hadoop's client there, with libhdfs.so in HADOOP_HOME/lib/native or ARROW_LIBHDFS_DIR."
        )


def open_hdfs(url: str, options: Mapping[str, Any]) -> Any:
    """Return this process's file system for a URL.

    Args:
        url: of scheme hdfs or viewfs; the path in it does not count.
        options: pyarrow's `user`, `kerb_ticket` and `extra_conf`.

    Raises:
        PreflightError: no client is installed, or this process is another user there already.
        ValueError: hdfs-native does not have an option.
        OSError: Hadoop's configuration does not have what the URL names; by libhdfs, also: no connection.
    """
    url = "/".join(url.split("/")[:3])
    check_client(url)
    try:
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError:
        return _connect_by_libhdfs(url, options)
    if unknown := options.keys() - {*_VARIABLES, "extra_conf"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: hdfs-native has user, kerb_ticket and extra_conf")
    _choose_user(url, options)
    conf = {**_SETTINGS, **(options.get("extra_conf") or {})}
    key = os.getpid(), url, *sorted(conf.items())
    if key not in _filesystems:
        # The address has no effect: what would connect to it is replaced.
        filesystem: Any = HdfsFileSystem("localhost", 1, skip_instance_cache=True)
        filesystem.client.inner = _Client(url, conf)
        _filesystems[key] = filesystem
    return _filesystems[key]


def _connect_by_libhdfs(url: str, options: Mapping[str, Any]) -> Any:
    from fsspec.implementations.arrow import HadoopFileSystem

    scheme, host, port = (*url.replace("://", ":").split(":"), "")[:3]
    # 0: a name service, whose ports the Hadoop configuration has.
    return HadoopFileSystem(host if scheme == "hdfs" else url, int(port or 0) if scheme == "hdfs" else 0, **options)


def _choose_user(url: str, options: Mapping[str, Any]) -> None:
    for name, variable in _VARIABLES.items():
        value, present = options.get(name), os.environ.get(variable)
        if value and str(value) != present:
            if _filesystems:
                raise PreflightError(
                    f"{url}: hdfs-native has one {name} in a process, and it is {present or 'the default'}, not "
                    f"{value}. Give all stores the same one, or set {variable} before the program starts."
                )
            os.environ[variable] = str(value)


def _find_token_address(url: str) -> str:
    """Return the URL with the IP address for which the process's file of Hadoop's tokens has one, or as it is.

    Hadoop writes the address into a token, and hdfs-native looks for the words of the URL.
    """
    scheme, host, port = (*url.replace("://", ":").split(":"), "")[:3]
    with contextlib.suppress(OSError):
        tokens = Path(os.environ[_TOKEN_FILE]).read_bytes() if port and _TOKEN_FILE in os.environ else b""
        for address in {str(item[4][0]) for item in socket.getaddrinfo(host, None)} if tokens else ():
            if f"{address}:{port}".encode() in tokens:
                return f"{scheme}://{address}:{port}"
    return url


def _load_library() -> Any:
    """Return hdfs-native's own module: in a child of ``fork`` a new copy, with other threads."""
    from hdfs_native import _internal

    if _libraries.setdefault(os.getpid(), _internal) is _internal and len(_libraries) > 1:
        descriptor = os.memfd_create("hdfs_native")
        with os.fdopen(descriptor, "wb") as copy:
            copy.write(Path(_internal.__file__).read_bytes())
            copy.flush()
            loader = ExtensionFileLoader(_internal.__name__, f"/proc/self/fd/{descriptor}")
            spec: Any = importlib.util.spec_from_loader(_internal.__name__, loader)
            _libraries[os.getpid()] = importlib.util.module_from_spec(spec)
            loader.exec_module(_libraries[os.getpid()])
    return _libraries[os.getpid()]


def _call(where: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of hdfs-native's returns, or raise OSError in the file system's words, after `where`."""
    end = time.monotonic() + _LIMIT.total_seconds()
    while True:
        result: Future[Any] = Future()
        threading.Thread(target=_fulfil, args=(result, function, arguments), daemon=True, name="hdfs").start()
        wait((result,), max(0.0, end - time.monotonic()))
        if not result.done():
            raise TimeoutError(f"{where}: HDFS has not answered within {_LIMIT.total_seconds():g} s.")
        error = result.exception()
        if error is None:
            return result.result()
        # A name node that has just started takes no changes until its data nodes have reported.
        if "will be turned off automatically" not in str(error) or time.monotonic() > end:
            raise _translate(where, error)
        time.sleep(1)


def _fulfil(result: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        result.set_result(function(*arguments))
    except BaseException as error:  # also of Rust's panics
        result.set_exception(error)


def _translate(where: str, error: BaseException) -> OSError:
    text, kind = str(error), type(error) if isinstance(error, OSError) else OSError
    if number := re.search(r"\(os error (\d+)\)", text):
        kind = type(OSError(int(number[1]), ""))
    if match := _JAVA_ERROR.fullmatch(text):
        kind = PermissionError if match[1] == "AccessControlException" else OSError
        text = f"{match[1]}: {match[2]}"
    if re.search("GSSAPIError|InvalidToken|NoSASLMechanism", text):
        words = re.findall('"([^"]*)"', text) or [text]
        kind, text = PermissionError, f"{words[-1]}. Run kinit, or spark-submit with --principal and --keytab."
    lines = text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"').splitlines()
    return kind(f"{where}: {' '.join(line for line in lines if not line.startswith(chr(9)))}")


class _Client:
    """hdfs-native's client, with calls that end and errors that name the path."""

    def __init__(self, url: str, conf: Mapping[str, str]) -> None:
        self._url = url
        folder = next((folder for _, folder in list_configuration_folders() if os.path.isdir(folder)), None)
        fallback = {f"fs.viewfs.mounttable.{url.partition('://')[2]}.linkFallback": _NOT_MOUNTED}
        # Then, of a host that is no name service, Hadoop's default port, and of a view, the paths that are not mounted.
        for address, more in ((_find_token_address(url), {}), (f"{url}:8020", {}), (url, fallback)):
            try:
                new = _load_library().RawClient
                self._raw = _call(url, new, address, {**more, **conf}, folder, None, None, None)
                break
            except OSError as error:
                if more or not re.search("No NameNode hosts|No viewfs fallback", str(error)):
                    raise

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self.call, name)

    def call(self, name: str, path: str, *arguments: Any) -> Any:
        """Call a method whose first argument is a path."""
        function, where = getattr(self._raw, name), self._url + path
        if name == "list_status":  # an iterator that makes calls
            return iter(_call(where, lambda: list(function(path, *arguments))))
        result = _call(where, function, path, *arguments)
        if name == "read":
            return _Reader(where, result)
        return _Writer(self, path, where, result) if name == "create" else result


class _Reader:
    """hdfs-native's reader of a file."""

    def __init__(self, where: str, raw: Any) -> None:
        self._where, self._raw = where, raw

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(_call, self._where, getattr(self._raw, name))

    def read(self, count: int) -> bytes:
        """Return this number of bytes, or, by -1, all that are left."""
        left = count if count >= 0 else int(self._raw.file_length())
        pieces: list[bytes] = []
        while left > 0 and (piece := _call(self._where, self._raw.read, min(left, _PIECE))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


class _Writer:
    """hdfs-native's writer of a file.

    It ends with a block, and another one appends: hdfs-native does not wait until the name node has heard of the blocks
    before, and then fails with NotReplicatedYetException.
    """

    def __init__(self, client: _Client, path: str, where: str, raw: Any) -> None:
        self._client, self._path, self._where, self._raw = client, path, where, raw
        self._left: int | None = None
        self._is_open = True

    def write(self, content: Any) -> int:
        """Write all of it."""
        view = memoryview(content).cast("B")
        count = len(view)
        while view:
            if self._left == 0:
                self.close()
                self._raw = self._client.call("append", self._path)
            if not self._left:
                self._left = int(self._client.call("get_file_info", self._path).blocksize)
            piece = view[: min(_PIECE, self._left)]
            self._is_open = False  # if it fails, nothing is left to be closed
            _call(self._where, self._raw.write, piece)
            self._is_open, self._left, view = True, self._left - len(piece), view[len(piece) :]
        return count

    def close(self) -> None:
        """End the file, unless it has failed."""
        if self._is_open:
            self._is_open = False
            _call(self._where, self._raw.close)
