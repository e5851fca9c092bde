"""File systems that a Spark session reaches: through its JVM, through a Spark Connect server, or by fsspec.

Files are copied whole between this machine's disk and the other file system, in pieces: none is in memory at once.
Each call raises OSError, with the file system's words.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spark_estimator.errors import PreflightError, remove_links
from spark_estimator.store import FilesystemStore, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A Connect server returns a file as one row, and holds several copies of it.
_CONNECT_PART, _CONNECT_MOST = 32 << 20, 64 << 20
# After this time a folder that a writer has not put in place is one of a program that was killed.
_ABANDONED_AFTER = timedelta(days=1)
_KINDS: dict[str, type[OSError]] = {
    "AccessControlException": PermissionError,
    "AccessDeniedException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "PATH_NOT_FOUND": FileNotFoundError,
}


class FileSystem(Protocol):
    """What saving and loading need of a file system. Paths are URLs.

    Attributes:
        part_bytes: files of more bytes are stored in parts of this size; None: whole.
    """

    part_bytes: int | None

    def get_user(self) -> str:
        """Return the user whose permissions hold, for messages."""

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the names of all files below a folder, relative to it, and their bytes; of a file ""."""

    def fetch(self, path: str, size: int, target: Path) -> None:
        """Copy a file to this machine."""

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine; replace what is there, and make the folders above it."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; do nothing where there is none."""


class HadoopFiles:
    """Hadoop's file systems, by the JVM of a classic session, with the session's settings and credentials.

    Attributes:
        uri: the qualified form of the path that it was made with: with scheme and host, absolute.

    Args:
        path: which chooses the file system; without a scheme it is on the default one.

    Raises:
        OSError: this Hadoop does not know the scheme, or the path is none.
    """

    part_bytes: int | None = None

    def __init__(self, session: SparkSession, path: str) -> None:
        state: Any = session
        with _raise_os_errors():
            self._gateway = state.sparkContext._gateway
            self._hadoop = self._gateway.jvm.org.apache.hadoop
            self._conf = state._jsparkSession.sessionState().newHadoopConf()
            self._fs = self._to_path(path).getFileSystem(self._conf)
            self.uri: str = self._fs.makeQualified(self._to_path(path)).toString()

    def get_user(self) -> str:
        """Return the user whose permissions hold, for messages."""
        return str(self._hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName())

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""
        with _raise_os_errors():
            return bool(self._fs.exists(self._to_path(path)))

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the names of all files below a folder, relative to it, and their bytes; of a file ""."""
        result: dict[str, int] = {}
        with _raise_os_errors():
            root = self._fs.makeQualified(self._to_path(folder)).toString()
            files = self._fs.listFiles(self._to_path(folder), True)
            while files.hasNext():
                status = files.next()
                result[status.getPath().toString()[len(root) :].lstrip("/")] = int(status.getLen())
        return result

    def fetch(self, path: str, size: int, target: Path) -> None:
        """Copy a file to this machine, without a file of checksums beside it."""
        with _raise_os_errors():
            self._fs.copyToLocalFile(False, self._to_path(path), self._to_local_path(target), True)

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine; replace what is there, and make the folders above it."""
        with _raise_os_errors():
            self._fs.copyFromLocalFile(False, True, self._to_local_path(source), self._to_path(path))

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; do nothing where there is none."""
        with _raise_os_errors():
            self._fs.delete(self._to_path(path), True)

    def moves_at_once(self, folder: str) -> bool:
        """Return whether folders move in one step there: on HDFS, also where viewfs leads to it. Make the parent."""
        with _raise_os_errors():
            parent = self._to_path(folder).getParent()
            self._fs.mkdirs(parent)
            return str(self._fs.resolvePath(parent).toUri().getScheme()) == "hdfs"

    def begin(self, partial: str, pattern: str) -> None:
        """Make a new folder, and remove those that writers which were killed have left.

        Args:
            partial: the new folder.
            pattern: Hadoop's glob of such folders. They are old by the clock of the file system alone.
        """
        with _raise_os_errors():
            self._fs.mkdirs(self._to_path(partial))
            now = self._fs.getFileStatus(self._to_path(partial)).getModificationTime()
            for status in self._fs.globStatus(self._to_path(pattern)) or ():
                if now - status.getModificationTime() > _ABANDONED_AFTER.total_seconds() * 1000:
                    self._fs.delete(status.getPath(), True)

    def move(self, source: str, target: str) -> None:
        """Move a folder in one step.

        Raises:
            FileExistsError: the target is there already.
        """
        with _raise_os_errors():
            context = self._hadoop.fs.FileContext.getFileContext(self._fs.getUri(), self._conf)
            # FileSystem.rename() would move it into a folder of that name.
            options = self._gateway.new_array(self._hadoop.fs.Options.Rename, 0)
            context.rename(self._to_path(source), self._to_path(target), options)

    def keep_permission(self, source: str, target: str) -> None:
        """Give a folder the permission of another one."""
        with _raise_os_errors():
            permission = self._fs.getFileStatus(self._to_path(source)).getPermission()
            self._fs.setPermission(self._to_path(target), permission)

    def _to_path(self, path: str) -> Any:
        return self._hadoop.fs.Path(path)

    def _to_local_path(self, path: Path) -> Any:
        return self._hadoop.fs.Path("file", None, str(path.absolute()))


class FsspecFiles:
    """A file system of fsspec's, with the credentials that it finds on this machine.

    Raises:
        PreflightError: fsspec does not know the scheme, or lacks a package for it.
    """

    part_bytes: int | None = None

    def __init__(self, uri: str) -> None:
        store = Store.create(uri)
        assert isinstance(store, FilesystemStore)
        self._store = store

    def get_user(self) -> str:
        """Return the user whose permissions hold, for messages."""
        return "of fsspec's credentials"

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""
        with _raise_os_errors():
            return self._store.exists(path)

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the names of all files below a folder, relative to it, and their bytes; of a file ""."""
        result: dict[str, int] = {}
        with _raise_os_errors():
            for path, size in self._store.entries(folder):
                name = path[len(folder) :].lstrip("/")
                if size is None:
                    result |= {f"{name}/{below}": count for below, count in self.list_files(path).items()}
                else:
                    result[name] = size
        return result

    def fetch(self, path: str, size: int, target: Path) -> None:
        """Copy a file to this machine."""
        with _raise_os_errors(), self._store.open(path) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine; replace what is there, and make the folders above it."""
        with _raise_os_errors(), source.open("rb") as content, self._store.open(path, "wb") as copy:
            shutil.copyfileobj(content, copy, 1 << 20)

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; do nothing where there is none."""
        with _raise_os_errors():
            if self._store.exists(path):
                self._store.remove(path)


class ConnectFiles:
    """What a Spark Connect server reaches, with its settings and credentials.

    The server writes files only to its default file system; elsewhere fsspec writes. It reads a file as one row, so
    large files are stored in parts. It cannot remove a folder, only empty it: a ``_SUCCESS`` and an empty file stay.

    Attributes:
        uri: the qualified form of the path that it was made with.

    Raises:
        OSError: the server's Hadoop does not know the scheme, or the path is none.
    """

    part_bytes: int | None = _CONNECT_PART

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session = session
        with _raise_os_errors():
            self.uri = self._qualify(path)
            self._default = self._qualify("/spark_estimator").removesuffix("spark_estimator")

    def get_user(self) -> str:
        """Return the user whose permissions hold, for messages."""
        row = self._session.sql("select current_user()").first()
        return f"{row[0] if row else '?'} of the Spark Connect server"

    def exists(self, path: str) -> bool:
        """Return whether a file or folder is there."""
        try:
            with _raise_os_errors():
                _ = self._read(path).schema
        except FileNotFoundError:
            return False
        return True

    def list_files(self, folder: str) -> dict[str, int]:
        """Return the names of all files below a folder, relative to it, and their bytes; of a file ""."""
        with _raise_os_errors():
            rows = self._read(folder).select("path", "length").collect()
        return {path[len(folder) :].lstrip("/"): int(length) for path, length in rows}

    def fetch(self, path: str, size: int, target: Path) -> None:
        """Copy a file to this machine.

        Raises:
            OSError: also where it is larger than a server may return, and fsspec does not read it.
        """
        if size > _CONNECT_MOST:
            self._open_by_fsspec(path, f"{size} bytes are more than the {_CONNECT_MOST} that a row may have").fetch(
                path, size, target
            )
            return
        with _raise_os_errors(), target.open("wb") as copy:
            for row in self._read(path).select("content").toLocalIterator():
                copy.write(row[0])

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine; replace what is there, and make the folders above it."""
        if not path.startswith(self._default):
            self._open_by_fsspec(path, f"its server writes files only to its default file system, {self._default}").put(
                source, path
            )
            return
        with _raise_os_errors():
            self._session.copyFromLocalToFs(str(source), f"/{path[len(self._default) :]}")

    def remove(self, path: str) -> None:
        """Empty a folder; do nothing where there is none."""
        if self.exists(path):
            with _raise_os_errors():
                empty = self._session.range(0).selectExpr("cast(id as string)")
                empty.write.mode("overwrite").text(path)

    def check_writing(self) -> None:
        """Raise OSError where neither the server nor fsspec can write to the path."""
        if not self.uri.startswith(self._default):
            self._open_by_fsspec(self.uri, f"its server writes files only to its default file system, {self._default}")

    def sees(self, file: Path) -> bool:
        """Return whether the server finds a file of this machine at the same path."""
        return self.exists(f"file:///{file.absolute().as_posix().lstrip('/')}")

    def _read(self, path: str) -> Any:
        read = self._session.read.format("binaryFile").option("recursiveFileLookup", "true")
        return read.load(re.sub(r"([\\\[\]{}*?,])", r"\\\1", path))

    def _qualify(self, path: str) -> str:
        """Return a path as the server has it, which it names only in an error."""
        absent = f"{path.rstrip('/')}.{secrets.token_hex(8)}"
        try:
            _ = self._read(absent).schema
        except Exception as error:
            match = re.search(rf"Path does not exist: (.*)\.{absent[-16:]}", str(error))
            if match is None:
                raise
            return re.sub(r"\\(.)", r"\1", match[1])
        raise OSError(f"{absent} is there")

    def _open_by_fsspec(self, path: str, reason: str) -> FsspecFiles:
        try:
            return FsspecFiles(path)
        except (PreflightError, ValueError, OSError) as error:
            raise OSError(
                f"over Spark Connect, {reason}, and fsspec does not reach it from this client: "
                f"{remove_links(str(error))} Or use a classic session."
            ) from error


@contextmanager
def _raise_os_errors() -> Iterator[None]:
    """Make OSErrors of what Java, a Connect server or a package of fsspec's raise, with the first line of their words.

    A bug of this package is a Python error of another kind, and is left as it is.
    """
    try:
        yield
    except (OSError, PreflightError, AssertionError, AttributeError, TypeError, NameError):
        raise
    except Exception as error:
        java = getattr(error, "java_exception", None)
        if java is not None:
            name, text = str(java.getClass().getSimpleName()), str(java.getMessage() or "")
        else:
            name, text = type(error).__name__, str(error)
        # Spark's errors have the name of the Java class in their text.
        kind = next((kind for word, kind in _KINDS.items() if word in f"{name} {text}"), OSError)
        line = next(iter(text.strip().splitlines()), "")
        raise kind(f"{name}: {line}") from error
