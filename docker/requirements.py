"""Prints what the package and its extras need, without the package itself: a layer below it in the image.

python3 requirements.py EXTRA,EXTRA...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib


def list_requirements(project: dict, extras: list[str]) -> list[str]:
    """Return the requirements of the package and of extras, with those of the extras that these name."""
    requirements = list(project.get("dependencies", []))
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            if reference := re.fullmatch(r"spark-estimator\[([\w,-]+)\](.*)", requirement):
                requirements += list_requirements({**project, "dependencies": []}, reference[1].split(","))
            else:
                requirements.append(requirement)
    return list(dict.fromkeys(requirements))


if __name__ == "__main__":
    contents = tomllib.loads(Path("pyproject.toml").read_text())
    print("\n".join(list_requirements(contents["project"], [extra for extra in sys.argv[1].split(",") if extra])))
