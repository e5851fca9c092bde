"""``python -m spark_estimator compat enable|disable|status``: the old names for a whole Python environment.

What is written is one line in one ``.pth`` file: the path of the stand-ins, which comes after everything that is
installed. Interpreters start as fast as before, and a real Horovod that is installed later wins by itself.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
from pathlib import Path

from spark_estimator.compat.aliases import ROOTS
from spark_estimator.compat.importer import real_package, shims_path

PTH_NAME = "spark_estimator_compat.pth"
#: Seconds that a fresh interpreter gets to import the old names; it takes a fraction of one.
_CHECK_SECONDS = 60


def main(argv: list[str] | None = None) -> int:
    """Runs one of the three verbs; returns the exit status: 0, or 1 when it was refused or failed."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_estimator compat",
        description="Make `import horovod.torch` and `from sparkdl import HorovodRunner` lead to spark_estimator.",
    )
    parser.add_argument("verb", choices=("enable", "disable", "status"), help="for this interpreter's environment")
    verb = parser.parse_args(argv).verb
    return {"enable": enable, "disable": disable, "status": status}[verb]()


def enable() -> int:
    """Writes the ``.pth`` file, says where, and checks it with a fresh interpreter."""
    for root in sorted(ROOTS):
        origin = real_package(root)
        if origin is not None:
            print(
                f"Refused: a real {root} is installed ({origin}), and its users would get another library. Remove it "
                f"with `{sys.executable} -m pip uninstall {root}`, or call spark_estimator.compat.install(force=True) "
                "in the programs that are to use spark_estimator."
            )
            return 1
    target = next((folder for folder in site_folders() if os.access(folder, os.W_OK)), None)
    if target is None:
        print(f"Refused: none of these folders can be written: {', '.join(map(str, site_folders()))}.")
        return 1
    shims = Path(shims_path())
    # Relative where that is possible, so that an environment may be moved or copied into an image.
    line = shims.relative_to(target) if shims.is_relative_to(target) else shims
    file = target / PTH_NAME
    file.write_text(f"{line}\n", encoding="utf-8")
    problem = check_in_fresh_interpreter()
    if problem is not None:
        file.unlink()
        print(f"Failed, nothing was changed: a fresh interpreter could not import the old names: {problem}")
        return 1
    print(f"Enabled: wrote {file} with the line {line}")
    print("Python programs that start from now on find `horovod` and `sparkdl`; `compat disable` takes it back.")
    return 0


def disable() -> int:
    """Removes what `enable` wrote; nothing to remove is fine."""
    files = written_files()
    for file in files:
        try:
            file.unlink()
        except OSError as error:
            print(f"Failed: {file} cannot be removed: {error.strerror}.")
            return 1
        print(f"Disabled: removed {file}")
    if not files:
        print("Disabled already: no environment file was found.")
    return 0


def status() -> int:
    """Prints whether the old names are enabled here, by which file, and which real packages there are."""
    files = written_files()
    print(f"aliases: {'enabled by ' + ', '.join(map(str, files)) if files else 'not enabled in this environment'}")
    for root in sorted(ROOTS):
        origin = real_package(root)
        print(f"{root}: {'real one installed at ' + origin if origin else 'no real one installed'}")
    return 0


def site_folders() -> list[Path]:
    """The folders of this environment whose ``.pth`` files are read at start, in the order in which they are read."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [Path(folder) for folder in folders if os.path.isdir(folder)]


def written_files() -> list[Path]:
    """The files that `enable` has written for this environment."""
    return [file for file in (folder / PTH_NAME for folder in site_folders()) if file.exists()]


def check_in_fresh_interpreter() -> str | None:
    """None when a new interpreter finds the old names by the environment alone; else its last line of complaint."""
    program = "import horovod, sparkdl; assert horovod.__version__ and 'HorovodRunner' in dir(sparkdl), sparkdl"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=os.path.sep,  # a checkout in the current folder must not stand in for an installation
        env=environment,
        capture_output=True,
        text=True,
        timeout=_CHECK_SECONDS,
        check=False,
    )
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]
