"""The variables of the launcher that ranks on other hosts get: all but those that describe one host, login or process.

Horovod passes everything, on ssh's command line; here it is sent through ssh's standard input.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_estimator.launch.job.environment import checked_environment

_OF_ONE_HOST = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "TMPDIR", "TEMP", "TMP"),
        *("PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "WINDOWID", "DISPLAY", "XAUTHORITY", "_"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MANAGERPID"),
    }
)
_OF_ONE_LOGIN = ("SSH_", "XDG_", "DBUS_", "WAYLAND_", "BASH_FUNC_", "TMUX", "SUDO_", "GPG_")


def exported_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of the launcher's variables that mean the same on another host with the same files."""
    return checked_environment(
        {
            name: value
            for name, value in environ.items()
            if name and name not in _OF_ONE_HOST and not name.startswith(_OF_ONE_LOGIN)
        }
    )
