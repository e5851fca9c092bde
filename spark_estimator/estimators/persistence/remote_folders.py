"""Saved folders on the session's file systems: where a path leads, and folders that are whole or not there.

A path without a scheme is on the session's default file system, as for Spark ML. The writer makes the new folder on
this machine's disk and copies its files. Where the file system moves a folder in one step (HDFS):

1. The files go to ``.NAME.TOKEN.partial`` beside the target.
2. Without a previous folder it becomes the target in one step. Else it becomes ``.NAME.next`` in one step, the previous
   folder is moved away, ``.NAME.next`` becomes the target, and the previous folder is removed.

Elsewhere the manifest is copied last. Without a previous folder the files go to the target, else to ``.NAME.next``.
Then the previous folder is removed, the files go to the target, and ``.NAME.next`` gets an empty manifest and is
removed.

While ``.NAME.next`` has a manifest that is not empty it is whole: readers use it, and the next writer puts it in place.
So a program that is killed leaves the previous folder or the new one. What it left of a partial folder is removed a day
later.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_estimator.errors import DataError, PreflightError, remove_links
from spark_estimator.estimators.persistence.filesystems import ConnectFiles, FileSystem, FsspecFiles, HadoopFiles
from spark_estimator.estimators.persistence.folders import MANIFEST_FILE, MLFLOW_FOLDER, is_local, to_local_path
from spark_estimator.launch.spark.session import find_session
from spark_estimator.store.hadoop import find_default_filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_PART = re.compile(r"(?P<name>.+)\.part-\d{5}")
# How often a folder may be replaced while it is read.
_TRIES = 5


class RemoteFolder:
    """A folder on a file system that is not this machine's.

    Attributes:
        uri: its URL, for messages.

    Args:
        filesystem: that has it.
    """

    def __init__(self, uri: str, filesystem: FileSystem) -> None:
        self.uri = uri.rstrip("/")
        self._fs = filesystem
        self._parent, _, self._name = self.uri.rpartition("/")
        if self._name in ("", ".", "..") or not self._parent or self._parent.endswith(":/"):
            raise DataError(f"{uri} has no name for a folder: pass the path of a folder below it.")
        self._next = f"{self._parent}/.{self._name}.next"

    @contextmanager
    def replace(self, *, overwrite: bool) -> Iterator[Path]:
        """Yield a new folder of this machine to write into, which takes this one's place at the end of the block.

        Raises:
            FileExistsError: there is a previous one, and `overwrite` is false.
            OSError: it cannot be written; the text has the path, the user and the cause.
        """
        with self._describe_errors("is not saved"):
            if isinstance(self._fs, ConnectFiles):
                self._fs.check_writing()
            if overwrite:
                self._finish()
            elif self._fs.exists(self.uri) or self._is_whole(self._next):
                raise FileExistsError("it exists already. Call write().overwrite().save(...) to replace it.")
        with tempfile.TemporaryDirectory(prefix="spark_estimator-") as private:
            local = Path(private) / "folder"
            local.mkdir()
            yield local
            with self._describe_errors("is not saved"):
                if isinstance(self._fs, HadoopFiles) and self._fs.moves_at_once(self.uri):
                    self._replace_by_moves(self._fs, local)
                else:
                    self._replace_by_copies(local)

    @contextmanager
    def fetch(self) -> Iterator[Path]:
        """Yield a private copy on this machine. A DataError of the block gets the folder's URL in its text.

        Raises:
            DataError: it cannot be read; the text has the path, the user and the cause. Not for a missing folder: then
                the copy is missing, too.
        """
        with tempfile.TemporaryDirectory(prefix="spark_estimator-") as private:
            local = Path(private) / "folder"
            try:
                with self._describe_errors("is not loaded"):
                    self._fetch(local)
            except OSError as error:
                raise DataError(str(error)) from error
            try:
                yield local
            except DataError as error:
                text = remove_links(str(error)).replace(str(local), self.uri)
                text = text if local.exists() else f"{text.rstrip('.')}, for user {self._get_user()}."
                raise type(error)(text) from error

    def _replace_by_moves(self, filesystem: HadoopFiles, local: Path) -> None:
        partial = self._make_partial_name()
        pattern = re.sub(r"([\\\[\]{}*?,])", r"\\\1", f"{self._parent}/.{self._name}.") + "????????.partial"
        try:
            filesystem.begin(partial, pattern)
            self._put(local, partial)
            if filesystem.exists(self.uri):
                filesystem.keep_permission(self.uri, partial)
                filesystem.move(partial, self._next)
                self._finish()
            else:
                filesystem.move(partial, self.uri)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.remove(partial)
            raise

    def _replace_by_copies(self, local: Path) -> None:
        if self._fs.exists(self.uri):
            self._fs.remove(self._next)
            self._put(local, self._next)
            self._copy_next(local)
        else:
            self._put(local, self.uri)

    def _finish(self) -> None:
        """Put in place what an earlier writer has left as the next folder."""
        if not self._is_whole(self._next):
            return
        if isinstance(self._fs, HadoopFiles) and self._fs.moves_at_once(self.uri):
            self._move_next(self._fs)
            return
        with tempfile.TemporaryDirectory(prefix="spark_estimator-") as private:
            self._get(self._next, Path(private))
            self._copy_next(Path(private))

    def _move_next(self, filesystem: HadoopFiles) -> None:
        """Put the next folder in place. Another program may do the same at this moment: no folder is lost by that."""
        previous = self._make_partial_name()
        with contextlib.suppress(FileNotFoundError):  # there is none, or another program has moved it
            filesystem.move(self.uri, previous)
        try:
            filesystem.move(self._next, self.uri)
        except FileNotFoundError:  # another program has put it in place, perhaps before this one's first move
            if not filesystem.exists(self.uri):
                filesystem.move(previous, self.uri)
        filesystem.remove(previous)

    def _make_partial_name(self) -> str:
        return f"{self._parent}/.{self._name}.{secrets.token_hex(4)}.partial"

    def _copy_next(self, local: Path) -> None:
        self._fs.remove(self.uri)
        self._put(local, self.uri)
        with tempfile.TemporaryDirectory(prefix="spark_estimator-") as private:  # a server cannot remove a file
            Path(private, MANIFEST_FILE).touch()
            self._fs.put(Path(private, MANIFEST_FILE), f"{self._next}/{MANIFEST_FILE}")
        self._fs.remove(self._next)

    def _put(self, local: Path, folder: str) -> None:
        """Copy all files, the manifest last."""
        files = [file for file in sorted(local.rglob("*")) if file.is_file()]
        for file in sorted(files, key=lambda file: file.name == MANIFEST_FILE):
            path, limit = f"{folder}/{file.relative_to(local).as_posix()}", self._fs.part_bytes
            if limit is None or file.stat().st_size <= limit:
                self._fs.put(file, path)
                continue
            with file.open("rb") as content, tempfile.TemporaryDirectory(prefix="spark_estimator-") as private:
                part = Path(private) / "part"
                for number in range(-(-file.stat().st_size // limit)):
                    part.write_bytes(content.read(limit))
                    self._fs.put(part, f"{path}.part-{number:05d}")

    def _fetch(self, local: Path) -> None:
        for _ in range(_TRIES):
            shutil.rmtree(local, ignore_errors=True)
            source = self._find_source()
            if source is None:
                if self._fs.exists(self.uri):
                    local.mkdir()
                if self._fs.exists(f"{self.uri}/metadata"):  # of Horovod's folders
                    self._get(f"{self.uri}/metadata", local / "metadata")
                return
            again = local.with_name("again")
            with contextlib.suppress(FileNotFoundError):  # another program replaces it
                self._get(source, local)
                self._get(f"{source}/{MANIFEST_FILE}", again)
                if again.read_bytes() == (local / MANIFEST_FILE).read_bytes():
                    return
        raise OSError(f"other programs have replaced it during each of {_TRIES} attempts to read it")

    def _find_source(self) -> str | None:
        """Return the folder to read; None: there is nothing that this package reads."""
        for folder in (self._next, self.uri, f"{self.uri}/data/{MLFLOW_FOLDER}"):
            if self._is_whole(folder):
                return folder
        return None

    def _is_whole(self, folder: str) -> bool:
        """Return whether a folder has a manifest that is not empty."""
        try:
            return any(self._fs.list_files(f"{folder}/{MANIFEST_FILE}").values())
        except FileNotFoundError:
            return False

    def _get(self, source: str, target: Path) -> None:
        """Copy a file, or all files of a folder; join the parts of large ones."""
        for name, size in sorted(self._fs.list_files(source).items()):
            if ".." in Path(name).parts:  # of an object store
                raise OSError(f"it has a file of the name {name!r}")
            file = target / name
            file.parent.mkdir(parents=True, exist_ok=True)
            path = f"{source}/{name}" if name else source
            part = _PART.fullmatch(file.name)
            if part is None:
                self._fs.fetch(path, size, file)
                continue
            self._fs.fetch(path, size, file)
            with (file.parent / part["name"]).open("wb" if name.endswith("00000") else "ab") as whole:
                whole.write(file.read_bytes())
            file.unlink()

    def _get_user(self) -> str:
        try:
            return self._fs.get_user()
        except Exception:
            return "unknown"

    @contextmanager
    def _describe_errors(self, outcome: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise PermissionError(self._describe(outcome, error)) from error
        except FileExistsError as error:
            raise FileExistsError(self._describe(outcome, error)) from error
        except OSError as error:
            raise OSError(self._describe(outcome, error)) from error

    def _describe(self, outcome: str, error: OSError) -> str:
        return f"{self.uri} {outcome}, as user {self._get_user()}: {error}"


def find_folder(path: str, session: SparkSession | None = None, *, to_write: bool = False) -> Path | RemoteFolder:
    """Return where a folder is: a path of this machine's, or a folder of the session's file systems.

    Args:
        path: without a scheme it is on the session's default file system; without a session it is this machine's.
        session: classic or Connect; None: the active one.
        to_write: the folder is to be saved there.

    Raises:
        TypeError: `path` is neither text nor a path.
        DataError: it is empty, or of a file system that this process does not reach; or a Connect server takes it for
            its own disk, and this client, which is to write there, does not have that.
    """
    if is_local(path):
        return to_local_path(path)
    text = os.fspath(path)
    session = session or find_session()
    if session is None:
        return _find_without_session(text)
    is_connect = type(session).__module__.startswith("pyspark.sql.connect")
    try:
        filesystem = ConnectFiles(session, text) if is_connect else HadoopFiles(session, text)
    except OSError as error:
        if not is_connect:
            raise DataError(
                f"{text}: the session's Hadoop does not open it: {error}. For a file system that it does not know, add "
                "its jar to the session (spark.jars.packages)."
            ) from error
        try:
            return RemoteFolder(text, FsspecFiles(text))
        except (PreflightError, ValueError) as problem:
            raise DataError(
                f"{text}: the Spark Connect server does not open it: {error}. Nor does fsspec here: "
                f"{remove_links(str(problem))}"
            ) from error
    uri = filesystem.uri
    if is_local(uri):
        folder = to_local_path(uri)
        if to_write and isinstance(filesystem, ConnectFiles):
            _check_same_disk(filesystem, folder)
        return folder
    return RemoteFolder(uri, filesystem)


@contextmanager
def open_folder(path: str) -> Iterator[Path]:
    """Yield a saved folder as a path of this machine's: itself, or a private copy until the end of the block.

    Raises:
        TypeError, DataError: as `find_folder`; or it cannot be read.
    """
    folder = find_folder(path)
    if isinstance(folder, Path):
        yield folder
    else:
        with folder.fetch() as copy:
            yield copy


def _find_without_session(text: str) -> Path:
    try:
        root = find_default_filesystem(text, {})
    except PreflightError:
        root = ""
    missing = "and there is no Spark session, which would reach it. Make the session first."
    if _SCHEME.match(text):
        raise DataError(f"{text} is not a path of this machine, {missing}")
    if root:
        raise DataError(
            f"{text} is on Hadoop's default file system, {root}, {missing} A folder of this machine is "
            f"file://{os.path.abspath(text)}."
        )
    return to_local_path(text)


def _check_same_disk(filesystem: ConnectFiles, folder: Path) -> None:
    """Raise DataError where the server's default file system is a disk that this client does not have."""
    above = next(parent for parent in folder.absolute().parents if parent.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=above, prefix=".spark_estimator-") as probe:
            is_same = filesystem.sees(Path(probe.name))
    except OSError:  # this user may not write there: saving fails with the reason
        return
    if not is_same:
        raise DataError(
            f"{folder}: a path without a scheme is on the default file system of the Spark Connect server, its own "
            f"disk, which this client does not see. Write file://{folder.absolute()} for this client's disk, or a URL "
            "that the server reaches, such as hdfs:// or s3a://."
        )
