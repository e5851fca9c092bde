"""`python -m spark_estimator compat`: the old names for a whole environment, in a real one made for the purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.compat import shims_path
from spark_estimator.compat.environment import PTH_NAME
from tests.compat.interpreter import ROOT, fresh

VERB = "import sys; from spark_estimator.compat.environment import main; print(main([{verb!r}]))"


class Environment:
    """A virtual environment in which this checkout is installed, by a path."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
        self.python = folder / "bin" / "python"
        self.site = Path(self.run("import site; print(site.getsitepackages()[0])"))
        self.file = self.site / PTH_NAME

    def run(self, program: str) -> str:
        return fresh(program, path=(), python=self.python)

    def install(self) -> None:
        (self.site / "checkout.pth").write_text(f"{ROOT}\n")

    def verb(self, verb: str) -> list[str]:
        return self.run(VERB.format(verb=verb)).splitlines()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "environment")
    made.install()
    return made


def test_enable_status_disable(environment: Environment) -> None:
    assert environment.verb("status") == [
        "aliases: not enabled in this environment",
        "real horovod: not installed",
        "real lightning_horovod: not installed",
        "real petastorm: not installed",
        "real sparkdl: not installed",
        "0",
    ]
    wrote, _, code = environment.verb("enable")
    assert wrote == f"Enabled: wrote {environment.file} with the line {shims_path()}"
    assert code == "0"
    assert environment.file.read_text() == shims_path() + "\n"
    assert environment.verb("status")[0] == f"aliases: enabled by {environment.file}"
    program = """
        import sys
        assert not [name for name in sys.modules if "spark_estimator" in name]  # a start costs nothing
        import horovod, sparkdl
        print(horovod.__version__, "HorovodRunner" in dir(sparkdl))
        """
    assert environment.run(program) == "0.28.1 True"
    assert environment.verb("enable")[-1] == "0"  # twice is once
    assert environment.verb("disable") == [f"Disabled: removed {environment.file}", "0"]
    assert not environment.file.exists()
    assert environment.verb("disable") == ["Already disabled: there is no file to remove.", "0"]
    assert environment.run("import importlib.util; print(importlib.util.find_spec('horovod'))") == "None"


def test_a_real_horovod_refuses(environment: Environment) -> None:
    package = environment.site / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    refused, code = environment.verb("enable")
    assert refused.startswith(f"Refused: horovod itself is installed ({package}/__init__.py)")
    assert "pip uninstall horovod" in refused
    assert code == "1"
    assert not environment.file.exists()
    assert environment.verb("status")[1] == f"real horovod: installed at {package}/__init__.py"


def test_a_real_horovod_that_comes_later_wins(environment: Environment) -> None:
    environment.verb("enable")
    package = environment.site / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    assert environment.run("import horovod; print(horovod.__version__)") == "real"


def test_a_package_that_has_gone_leaves_no_complaint(environment: Environment) -> None:
    environment.verb("enable")
    environment.file.write_text("/nowhere/spark_estimator/compat/shims\n")
    assert environment.run("print('silent')") == "silent"


def test_what_cannot_work_is_taken_back(tmp_path: Path) -> None:
    made = Environment(tmp_path / "environment")
    program = VERB.format(verb="enable")
    # Importable in this process (by PYTHONPATH), and found by the shims; but the environment is broken otherwise. A
    # line of a .pth file: Debian's Python has its own sitecustomize, which would hide one here.
    (made.site / "broken.pth").write_text("import sys; sys.modules['horovod'] = None\n")
    printed = fresh(program, path=(ROOT,), python=made.python).splitlines()
    assert printed[0].startswith("Failed, and nothing was changed: a new interpreter could not import the aliases: ")
    assert printed[-1] == "1"
    assert not made.file.exists()


def test_a_folder_that_cannot_be_written(environment: Environment) -> None:
    program = """
        import spark_estimator.compat.environment as environment
        environment.os.access = lambda folder, mode: False  # the tests may run as root, who may write everywhere
        print(environment.main(["enable"]))
        """
    refused = f"Refused: none of these folders is writable: {environment.site}."
    assert environment.run(program).splitlines()[0].startswith(refused[:-1])
    assert not environment.file.exists()
