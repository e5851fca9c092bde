"""Start HDFS with Kerberos: an MIT KDC, and Hadoop's daemons that accept only its tickets and their own tokens.

It needs Debian's ``krb5-kdc``, ``krb5-admin-server`` and ``krb5-user``; without them tests skip.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.hadoop_daemons import Hadoop

_REALM = "TEST.LOCAL"
_SERVICES, _USERS = ("hdfs/localhost", "yarn/localhost", "HTTP/localhost"), ("alice", "bob")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def skip_without_kerberos() -> None:
    """Skip the test, naming the packages, where a program of Kerberos is missing."""
    missing = [name for name in ("krb5kdc", "kdb5_util", "kadmin.local", "kinit") if not shutil.which(name, path=_PATH)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found (Debian: krb5-kdc krb5-admin-server krb5-user)")


class KerberosHadoop(Hadoop):
    """HDFS whose users are alice, bob and hdfs, its administrator; all traffic is encrypted."""

    host = "localhost"

    def __init__(self, folder: Path, jars: Path) -> None:
        super().__init__(folder, jars)
        self.java_options = (f"-Djava.security.krb5.conf={folder}/krb5.conf",)

    def environ(self) -> dict[str, str]:
        """Return the variables of a program whose ticket is alice's, if she has one."""
        return {**super().environ(), "KRB5_CONFIG": f"{self._folder}/krb5.conf", "KRB5CCNAME": self.cache("alice")}

    def cache(self, user: str) -> str:
        """Return where a user's ticket is: the value of KRB5CCNAME."""
        return f"FILE:{self._folder}/{user}.cache"

    def keytab(self, name: str) -> str:
        """Return the file with the key of a user or a service."""
        return str(self._folder / f"{name.partition('/')[0]}.keytab")

    def log_in(self, user: str, *options: str) -> None:
        """Get a ticket for a user, for a day, or as kinit's options have it."""
        self._run("kinit", *options, "-k", "-t", self.keytab(user), user, KRB5CCNAME=self.cache(user.partition("/")[0]))

    def run_as(self, user: str, main_class: str, *arguments: str) -> str:
        """Return what a Java program of Hadoop's client prints for a user with a ticket; raise if it fails."""
        command = ["java", *self.java_options, "-cp", self._classpath, main_class, *arguments]
        return self._run(*command, KRB5CCNAME=self.cache(user))

    def start_kdc(self) -> None:
        """Make the realm with its principals and keytabs, and start its KDC."""
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{self._port()}"
        (self._folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {_REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            " rdns = false\n dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
            f"[realms]\n {_REALM} = {{\n  kdc = {address}\n }}\n[domain_realm]\n localhost = {_REALM}\n"
        )
        (self._folder / "kdc.conf").write_text(
            f"[kdcdefaults]\n kdc_listen = {address}\n kdc_tcp_listen = {address}\n"
            f"[realms]\n {_REALM} = {{\n  database_name = {self._folder}/principal\n"
            f"  key_stash_file = {self._folder}/stash\n  acl_file = {self._folder}/acl\n }}\n"
        )
        self._run("kdb5_util", "create", "-s", "-r", _REALM, "-P", "master")
        for name in _SERVICES + _USERS:
            for query in (f"addprinc -randkey {name}", f"ktadd -k {self.keytab(name)} {name}"):
                self._run("kadmin.local", "-r", _REALM, "-q", query)
        with open(self._folder / "logs" / "kdc.log", "wb") as log:
            self._processes["kdc"] = subprocess.Popen(
                [shutil.which("krb5kdc", path=_PATH) or "krb5kdc", "-n", "-r", _REALM],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environ(),
            )
        deadline = time.monotonic() + 60
        while (
            socket.socket().connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        self.log_in("hdfs/localhost")
        for user in _USERS:
            self.log_in(user)

    def _start_hdfs(self) -> None:
        self.start_kdc()
        super()._start_hdfs()

    def _write(self, name: str, settings: Mapping[str, Any]) -> None:
        services = {f"dfs.{part}.kerberos.principal": f"hdfs/localhost@{_REALM}" for part in ("namenode", "datanode")}
        keytabs = {f"dfs.{part}.keytab.file": self._folder / "hdfs.keytab" for part in ("namenode", "datanode")}
        more: dict[str, dict[str, Any]] = {
            "core-site": {
                "hadoop.security.authentication": "kerberos",
                "hadoop.security.authorization": "true",
                "hadoop.rpc.protection": "privacy",
                "hadoop.user.group.static.mapping.overrides": "alice=alice;bob=bob;hdfs=supergroup;"
                "yarn=hadoop;HTTP=hadoop",
            },
            "hdfs-site": {
                **services,
                **keytabs,
                "dfs.block.access.token.enable": "true",
                "dfs.data.transfer.protection": "privacy",
                # Otherwise a secure DataNode wants ports below 1024, or HTTPS.
                "ignore.secure.ports.for.testing": "true",
                "dfs.web.authentication.kerberos.principal": f"HTTP/localhost@{_REALM}",
                "dfs.web.authentication.kerberos.keytab": self._folder / "HTTP.keytab",
                "dfs.namenode.kerberos.internal.spnego.principal": f"HTTP/localhost@{_REALM}",
            },
        }
        for part in ("resourcemanager", "nodemanager"):
            more.setdefault("yarn-site", {}).update(
                {
                    f"yarn.{part}.principal": f"yarn/localhost@{_REALM}",
                    f"yarn.{part}.keytab": self._folder / "yarn.keytab",
                    f"yarn.{part}.webapp.spnego-principal": f"HTTP/localhost@{_REALM}",
                    f"yarn.{part}.webapp.spnego-keytab-file": self._folder / "HTTP.keytab",
                    # Without Hadoop's native library a NodeManager with Kerberos ends where it collects logs.
                    "yarn.log-aggregation-enable": "false",
                    "yarn.nodemanager.hostname": self.host,
                }
            )
        super()._write(name, {**settings, **more.get(name, {})})

    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self.environ(), "KRB5_KDC_PROFILE": f"{self._folder}/kdc.conf", "PATH": _PATH}

    def _run(self, *command: str, **env: str) -> str:
        done = subprocess.run(
            command, env={**self._environ(), **env}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr[-3000:])
        return done.stdout
