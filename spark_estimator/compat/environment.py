"""``python -m spark_estimator compat enable|disable|status``: the aliases for a whole Python environment.

``enable`` writes one line to a ``.pth`` file: the path of the packages that provide the aliases. The path is behind all
installed packages, so a real Horovod that is installed later takes precedence. The start of an interpreter takes no
longer than before.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
from pathlib import Path

from spark_estimator.compat.aliases import ROOTS
from spark_estimator.compat.importer import find_real_package, shims_path

PTH_NAME = "spark_estimator_compat.pth"
#: Timeout, in seconds, of a new interpreter's import of the aliases; it usually takes less than a second.
_CHECK_SECONDS = 60


def make_parser() -> argparse.ArgumentParser:
    """Make the command line of ``compat``."""
    command_line = argparse.ArgumentParser(
        prog="python -m spark_estimator compat",
        description="Make `import horovod.torch`, `from sparkdl import HorovodRunner` and `import petastorm` import "
        "spark_estimator.",
    )
    command_line.add_argument(
        "verb", choices=("enable", "disable", "status"), help="for this interpreter's environment"
    )
    return command_line


def main(argv: list[str] | None = None) -> int:
    """Run one of the three verbs; return the exit status: 0, or 1 if the verb was refused or failed."""
    verb = make_parser().parse_args(argv).verb
    return {"enable": enable, "disable": disable, "status": status}[verb]()


def enable() -> int:
    """Write the ``.pth`` file, prints its path, and checks it with a new interpreter. Return the exit status."""
    for root in sorted(ROOTS):
        origin = find_real_package(root)
        # An installed petastorm is imported under its name, as the aliases are behind all installed packages.
        if origin is not None and root != "petastorm":
            print(
                f"Refused: {root} itself is installed ({origin}), and programs that need it would get another library. "
                f"Remove it with `{sys.executable} -m pip uninstall {root}`, or call "
                "spark_estimator.compat.install(force=True) in the programs that should use spark_estimator."
            )
            return 1
    target = next((folder for folder in list_site_folders() if os.access(folder, os.W_OK)), None)
    if target is None:
        print(f"Refused: none of these folders is writable: {', '.join(map(str, list_site_folders()))}.")
        return 1
    shims = Path(shims_path())
    # Relative if possible, so that the environment can be moved or copied into an image.
    line = shims.relative_to(target) if shims.is_relative_to(target) else shims
    file = target / PTH_NAME
    file.write_text(f"{line}\n", encoding="utf-8")
    problem = check_in_fresh_interpreter()
    if problem is not None:
        file.unlink()
        print(f"Failed, and nothing was changed: a new interpreter could not import the aliases: {problem}")
        return 1
    print(f"Enabled: wrote {file} with the line {line}")
    print("Programs that start now can import `horovod`, `sparkdl` and `petastorm`; `compat disable` reverts this.")
    return 0


def disable() -> int:
    """Remove the files that `enable` wrote, if any. Return the exit status."""
    files = find_written_files()
    for file in files:
        try:
            file.unlink()
        except OSError as error:
            print(f"Failed: {file} cannot be removed: {error.strerror}.")
            return 1
        print(f"Disabled: removed {file}")
    if not files:
        print("Already disabled: there is no file to remove.")
    return 0


def status() -> int:
    """Print whether the aliases are enabled, by which file, and which real packages are installed."""
    files = find_written_files()
    print(f"aliases: {'enabled by ' + ', '.join(map(str, files)) if files else 'not enabled in this environment'}")
    for root in sorted(ROOTS):
        origin = find_real_package(root)
        print(f"real {root}: {'installed at ' + origin if origin else 'not installed'}")
    return 0


def list_site_folders() -> list[Path]:
    """Return the folders of this environment whose ``.pth`` files an interpreter reads at start, in that order."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [Path(folder) for folder in folders if os.path.isdir(folder)]


def find_written_files() -> list[Path]:
    """Return the files that `enable` has written for this environment."""
    return [file for file in (folder / PTH_NAME for folder in list_site_folders()) if file.exists()]


def check_in_fresh_interpreter() -> str | None:
    """Return None if a new interpreter can import the aliases without PYTHONPATH; else the last line of its error."""
    program = "import horovod, sparkdl; assert horovod.__version__ and 'HorovodRunner' in dir(sparkdl), sparkdl"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=os.path.sep,  # a checkout in the current folder must not hide a broken installation
        env=environment,
        capture_output=True,
        text=True,
        timeout=_CHECK_SECONDS,
        check=False,
    )
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
