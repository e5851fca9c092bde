"""The launcher's variables that ranks on other hosts get."""

from __future__ import annotations

import pytest

from spark_estimator.launch.ssh.environment import exported_environment


def test_settings_are_exported_and_what_describes_one_host_or_login_is_not() -> None:
    settings = {"MY_SETTING": "a 'quoted' $value", "PYTHONPATH": "/shared", "HOROVOD_LOG_LEVEL": "debug"}
    of_this_host = {"HOME": "/root", "TMPDIR": "/tmp/x", "CUDA_VISIBLE_DEVICES": "1", "_": "/bin/env", "": "nameless"}
    of_this_login = {"SSH_AUTH_SOCK": "/tmp/agent", "XDG_RUNTIME_DIR": "/run/1", "BASH_FUNC_module%%": "() { :; }"}
    assert exported_environment({**settings, **of_this_host, **of_this_login}) == settings


def test_a_value_that_no_process_can_have_is_an_error() -> None:
    with pytest.raises(ValueError, match="MY_SETTING"):
        exported_environment({"MY_SETTING": "a\0b"})
