"""The command lines that start a host agent, and the remedies if one of them fails."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from spark_estimator import __version__
from spark_estimator.env import Settings

# Without quotes, exclamation marks and line ends: the login shell of the other host may be of any kind.
_PROGRAM = (
    'import sys; sys.path[:1] == [""] and sys.path.pop(0); '
    "from spark_estimator.launch.agent.agent import main; main()"
)  # fmt: skip

# Pattern of the last line -> remedy.
_REMEDIES = {
    r"Could not resolve hostname": "check the name, or set its address in -H, /etc/hosts or ~/.ssh/config",
    r"Host key verification failed": "the host key is unknown or has changed: connect once manually (ssh {host}) and "
    "verify it, or add it to ~/.ssh/known_hosts",
    r"Permission denied(, please| \()": "set up login without a password: ssh-copy-id {host}, a key in an ssh-agent, "
    "or --ssh-identity-file; check with `ssh -o BatchMode=yes {host} true`",
    r"Connection refused|No route to host|Network is unreachable|timed out": "is the host up, is sshd running, and is "
    "--ssh-port correct?",
    r"No module named '?spark_estimator": f"install the same wheel there (spark_estimator {__version__}), or set "
    "SPARK_ESTIMATOR_REMOTE_PYTHON to a Python that has it",
    r"not found|such file or directory|cannot execute|Permission denied": "the host has no {python}, the path of "
    "Python on this host: set SPARK_ESTIMATOR_REMOTE_PYTHON to its path there",
}


@dataclass(frozen=True)
class SshOptions:
    """How hosts are reached.

    Attributes:
        port: of sshd; None: that of ssh's configuration.
        identity_file: a private key; None: those of ssh's configuration.
        interfaces: of the hosts' network interfaces those whose address the ranks may use, the first that a host has;
            empty: the interface that ssh has connected to.
        ssh: the program and its first arguments.
        python: of the other hosts.
        settings: of heartbeats, and of the start timeout.
    """

    port: int | None = None
    identity_file: str | None = None
    interfaces: tuple[str, ...] = ()
    ssh: tuple[str, ...] = ("ssh",)
    python: str = sys.executable
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def read(
        cls,
        settings: Settings,
        *,
        port: int | None = None,
        identity_file: str | None = None,
        interfaces: str | None = None,
        python: str | None = None,
        needed: bool = True,
    ) -> SshOptions:
        """Return the options that a user has set, completed by the environment. Raises ValueError: one cannot be used.

        Args:
            interfaces: names with commas between them.
            needed: there are other hosts, so ssh must be installed; else it is only needed if another host joins.
        """
        ssh = tuple(shlex.split(settings.ssh_command))
        if not ssh or (needed and shutil.which(ssh[0]) is None):
            raise ValueError(
                f"{settings.ssh_command!r} is needed to reach other hosts and was not found: install an ssh client "
                "(Debian, Ubuntu: apt-get install openssh-client), or set SPARK_ESTIMATOR_SSH_COMMAND."
            )
        if port is not None and not 0 < port < 1 << 16:
            raise ValueError(f"the ssh port must be from 1 to 65535; got {port}.")
        if identity_file is not None and not os.path.isfile(os.path.expanduser(identity_file)):
            raise ValueError(f"the ssh identity file {identity_file} doesn't exist.")
        return cls(
            port=port,
            identity_file=None if identity_file is None else os.path.expanduser(identity_file),
            interfaces=tuple(name.strip() for name in (interfaces or "").split(",") if name.strip()),
            ssh=ssh,
            python=python or settings.remote_python or sys.executable,
            settings=settings,
        )


def join_interfaces(names: str | Collection[str] | None) -> str | None:
    """Join names of network interfaces by commas, as `SshOptions.read` takes them.

    Args:
        names: such a text, which is returned as it is; a list or tuple; a set, whose order is alphabetical. An
            empty collection is None.

    Raises:
        TypeError: it is of another type, or a name is not a string.
    """
    if names is None or isinstance(names, str):
        return names
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"network_interfaces must be a string, or a list or set of strings; got {names!r} ({type(names).__name__})."
        )
    return ",".join(names if isinstance(names, (list, tuple)) else sorted(names)) or None


def make_agent_command(host: str, options: SshOptions) -> list[str]:
    """Return the command that starts the agent of `host`. Nothing in it is secret."""
    settings = options.settings
    signs = f"{settings.heartbeat_seconds:g} {settings.silence_seconds:g}"
    remote = f"{shlex.quote(options.python)} -c {shlex.quote(_PROGRAM)} {signs}"
    path = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if path:
        remote = f"env PYTHONPATH={shlex.quote(os.pathsep.join(path))} {remote}"
    command = [*options.ssh, "-T", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"]
    command += ["-o", "ControlMaster=no", "-o", f"ConnectTimeout={max(1, round(settings.start_timeout_seconds))}"]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity_file is not None:
        command += ["-i", options.identity_file]
    return [*command, "--", host, f"exec {remote}"]


def find_remedy(host: str, message: str, options: SshOptions) -> str:
    """Return the remedy for the last line that ssh, or a program on the other host, has printed; '' if unknown."""
    for pattern, text in _REMEDIES.items():
        if re.search(pattern, message):
            return text.format(host=host, python=options.python)
    return ""
