"""What Python imports at its start in workers: it leaves the environment's own `sitecustomize` in place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.compat.importer import find_autoload_path
from spark_estimator.launch.local import run_local


def look() -> tuple[str | None, str, bool]:
    import sitecustomize

    return os.environ.get("SITE_RAN"), str(sitecustomize.__file__), "jax" in sys.modules


def test_the_environments_own_runs_once_in_a_worker_and_in_what_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = tmp_path / "sitecustomize.py"
    usual.write_text("import os\nos.environ['SITE_RAN'] = os.environ.get('SITE_RAN', '') + 'x'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delenv("SITE_RAN", raising=False)

    def start() -> tuple[object, str]:
        program = "import os, sitecustomize; print(os.environ['SITE_RAN'], sitecustomize.__file__)"
        return look(), subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout

    assert run_local(start, 1) == [(("x", str(usual), False), f"xx {usual}\n")]


def test_a_folder_twice_in_the_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(find_autoload_path())
    path = os.pathsep.join([find_autoload_path(), str(tmp_path / "link"), find_autoload_path()])
    program = "import sys; print([type(each).__name__ for each in sys.meta_path].count('JaxWatcher'))"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_process_without_this_package_imports_jax_as_ever(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("print('imported')")
    path = os.pathsep.join([find_autoload_path(), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; import jax"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")
