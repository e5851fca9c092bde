"""A store on HDFS, or on any other file system that is Hadoop's default."""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections.abc import Mapping
from typing import Any

from spark_estimator.store.filesystem import FilesystemStore, register_kind
from spark_estimator.store.hadoop import find_default_filesystem
from spark_estimator.store.hdfs_client import check_client

_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>/.*)?")
# Other file systems are fsspec's own.
_OF_HDFS = ("hdfs://", "viewfs://")


class HDFSStore(FilesystemStore):
    """A store on HDFS, by PyPI's hdfs-native, or else by pyarrow over libhdfs (a Hadoop client), on every host.

    A path without a host is on Hadoop's default file system, ``fs.defaultFS``: of `extra_conf`, of the Spark session,
    or of ``core-site.xml`` in ``HADOOP_CONF_DIR``, ``HADOOP_HOME/etc/hadoop`` or a folder of ``CLASSPATH``. It is found
    once, where the store is made, so that all ranks use the same. It may be another remote file system that fsspec
    knows, such as ``s3a`` or ``abfs``. It is never the local one.

    Args:
        prefix_path: ``hdfs://host:port/path``, ``hdfs:///path`` or ``/path``.
        host, port: of the name node, in place of those of the default file system.
        user, kerb_ticket: of HDFS. By hdfs-native a process has one of each, for all its stores.
        extra_conf: settings of Hadoop's client.
        driver: 'libhdfs', Horovod's default: chooses nothing.
        temp_dir: without effect, except for a warning.

    The other arguments are as in `FilesystemStore`; their paths may have each of the forms above.

    Raises:
        ValueError: the path has another form, or an argument cannot be used with this file system.
        PreflightError: there is no default file system, or it is the local one; neither client is installed here.
    """

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: Mapping[str, str] | None = None,
        temp_dir: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if driver != "libhdfs":
            raise ValueError(
                f"driver={driver!r}: 'libhdfs' alone is accepted; hdfs-native is used where it is installed."
            )
        if temp_dir is not None:
            warnings.warn(f"temp_dir={temp_dir!r} has no effect: files are written directly.", stacklevel=2)
        host = None if host == "default" else host
        if port and not host:
            raise ValueError(f"port={port} needs host, the name node's: host='namenode'.")
        self._root = self._find_root(os.fspath(prefix_path), host, port or None, extra_conf)
        scheme, _, authority = self._root.partition("://")
        user_of_url, at, authority = authority.rpartition("@")
        if at and scheme == "hdfs":
            if user not in (None, user_of_url):
                raise ValueError(f"user={user!r} and {prefix_path} name two users: give one of them.")
            self._root, user = f"{scheme}://{authority}", user_of_url
        arguments = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        options: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
        if self._root.startswith(_OF_HDFS):
            if not (authority.partition(":")[2] or "0").isdigit():
                raise ValueError(f"{self._root}: the port is a number.")
        elif options:
            raise ValueError(
                f"{', '.join(options)}: for HDFS only; the default file system is {self._root}. Use "
                f"FilesystemStore('{self._root}/path', storage_options={{...}})."
            )
        super().__init__(prefix_path, *args, **kwargs)
        self.storage_options = {**options, **self.storage_options}

    @staticmethod
    def matches(prefix_path: str) -> bool:
        """Return whether the path is one of HDFS."""
        return os.fspath(prefix_path).startswith("hdfs:/")

    def get_full_path(self, path: str) -> str:
        """Return the path as a URL, with the host that was found.

        Raises:
            ValueError: it is of another form, or on another host.
        """
        match = _parse_url(path)
        if match is not None:
            authority = (match["authority"] or "").rpartition("@")[2]
            here = self._root.partition("://")[0]
            if match["scheme"] not in ("hdfs", here) or (authority and not self._has(match["scheme"], authority)):
                raise ValueError(f"{path}: this store is on {self._root}.")
        tail = path if match is None else match["path"] or "/"
        return self._root + posixpath.normpath(f"/{tail.lstrip('/')}").rstrip("/")

    def get_localized_path(self, path: str) -> str:
        """Return the path without scheme and host."""
        return path.removeprefix(self._root)

    def _has(self, scheme: str, authority: str) -> bool:
        """Return whether a URL is on this store's file system; a host without a port matches the host with its port."""
        store_scheme, _, host = self._root.partition("://")
        return scheme == store_scheme and authority in (host, host.partition(":")[0], host.rpartition("@")[2])

    @staticmethod
    def _find_root(path: str, host: str | None, port: int | None, extra_conf: Mapping[str, str] | None) -> str:
        """Return the file system as a URL without a path. Raises as the class."""
        match = _parse_url(path)
        if match is not None and match["scheme"] != "hdfs":
            raise ValueError(
                f"{path}: HDFSStore has hdfs://host:port/path, hdfs:///path or /path; for others Store.create(path)."
            )
        authority = match["authority"] if match is not None else None
        if host is not None:
            address = host.removeprefix("hdfs://") + (f":{port}" if port else "")
            if authority and authority.partition(":")[0] != address.partition(":")[0]:
                raise ValueError(f"host={host!r} and {path} name two hosts: give one of them.")
            if authority and port and authority.partition(":")[2] not in ("", str(port)):
                raise ValueError(f"port={port} and {path} name two ports: give one of them.")
            return f"hdfs://{address if port or not authority else authority}"
        if authority:
            return f"hdfs://{authority}"
        root = find_default_filesystem(path, extra_conf or {})
        if match is not None and not root.startswith("hdfs://"):
            raise ValueError(
                f"{path} names no host, and the default file system is {root}: write hdfs://host:port/path."
            )
        return root

    def _is_local(self, path: str) -> bool:
        return False

    def _check(self) -> None:
        if self._root.startswith(_OF_HDFS):  # a connection costs seconds: it is made when needed
            check_client(self._root)
        else:
            super()._check()

    def _open_filesystem(self, path: str) -> tuple[Any, str]:
        return super()._open_filesystem(self.get_full_path(path))


register_kind(HDFSStore.matches, HDFSStore)


def _parse_url(path: str) -> re.Match[str] | None:
    """Return the parts of a URL; None for an absolute path. Raises ValueError: it is neither."""
    match = _URL.fullmatch(path)
    if match is None and not path.startswith("/"):
        raise ValueError(f"{path!r}: HDFSStore has hdfs://host:port/path, hdfs:///path or /path.")
    return match
