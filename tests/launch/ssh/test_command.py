"""The command lines that start agents, and the remedies for the errors of ssh."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from spark_estimator import __version__
from spark_estimator.env import Settings
from spark_estimator.launch.ssh.command import SshOptions, find_remedy, join_interfaces, make_agent_command

SETTINGS = Settings.read({"SPARK_ESTIMATOR_SSH_COMMAND": "true -F config"})


def test_options_of_the_user_and_the_environment(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    options = SshOptions.read(SETTINGS, port=2222, identity_file=str(key), interfaces="ib0, eth0,")
    assert (options.port, options.identity_file, options.interfaces) == (2222, str(key), ("ib0", "eth0"))
    assert (options.ssh, options.python) == (("true", "-F", "config"), sys.executable)
    settings = Settings.read({"SPARK_ESTIMATOR_REMOTE_PYTHON": "/remote/python"})
    assert SshOptions.read(settings, needed=False).python == "/remote/python"
    assert SshOptions.read(settings, needed=False, python="/other").python == "/other"


def test_names_of_interfaces_come_in_any_form() -> None:
    for names in ("ib0,eth0", ["ib0", "eth0"], ("ib0", "eth0")):
        assert join_interfaces(names) == "ib0,eth0"
    assert join_interfaces({"ib0", "eth0"}) == join_interfaces(frozenset(["ib0", "eth0"])) == "eth0,ib0"
    assert join_interfaces(None) is join_interfaces([]) is join_interfaces(set()) is None
    for wrong in (3, ["eth0", None], {"eth0": 1}, b"eth0"):
        with pytest.raises(TypeError, match="network_interfaces must be a string, or a list or set of strings; got"):
            join_interfaces(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"port": 0}, "the ssh port must be from 1 to 65535; got 0"),
        ({"port": 65536}, "got 65536"),
        ({"identity_file": "/missing/key"}, "the ssh identity file /missing/key doesn't exist"),
    ],
)
def test_an_option_that_cannot_be_used_is_quoted(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SshOptions.read(SETTINGS, **arguments)  # type: ignore[arg-type]


def test_a_missing_ssh_matters_only_where_it_is_needed() -> None:
    settings = Settings.read({"SPARK_ESTIMATOR_SSH_COMMAND": "missing-ssh -v"})
    with pytest.raises(ValueError, match="'missing-ssh -v' is needed to reach other hosts and was not found"):
        SshOptions.read(settings)
    assert SshOptions.read(settings, needed=False).ssh == ("missing-ssh", "-v")


def test_the_remote_command_survives_one_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/with space::/plain")
    options = SshOptions(port=22, identity_file="key", python="/opt/my python", settings=SETTINGS)
    command = make_agent_command("me@alpha", options)
    assert command[:3] == ["ssh", "-T", "-x"] and command[-3:-1] == ["--", "me@alpha"]
    assert command[command.index("-p") + 1] == "22" and command[command.index("-i") + 1] == "key"
    assert "BatchMode=yes" in command, "no question may be asked"
    words = shlex.split(command[-1])
    assert words[:5] == ["exec", "env", "PYTHONPATH=/with space:/plain", "/opt/my python", "-c"]
    compile(words[5], "the program", "exec")
    assert words[6:] == [f"{SETTINGS.heartbeat_seconds:g}", f"{SETTINGS.silence_seconds:g}"]


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("ssh: Could not resolve hostname alpha: Name or service not known", "check the name"),
        ("Host key verification failed.", "ssh alpha"),
        ("me@alpha: Permission denied (publickey,password).", "ssh-copy-id alpha"),
        ("ssh: connect to host alpha port 22: Connection refused", "is sshd running"),
        ("ModuleNotFoundError: No module named 'spark_estimator'", f"spark_estimator {__version__}"),
        ("bash: line 1: /opt/python: No such file or directory", "the host has no /opt/python"),
        ("sh: 1: exec: /opt/python: Permission denied", "the host has no /opt/python"),
        ("Killed", ""),
    ],
)
def test_remedies(message: str, advice: str) -> None:
    text = find_remedy("alpha", message, SshOptions(python="/opt/python", settings=SETTINGS))
    assert advice in text and bool(text) == bool(advice)
