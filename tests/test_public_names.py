"""Every public name of `public_names.txt` stays importable, has a docstring, and is once in the reference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A separate process: the old names must not stay in the test run's.
PROGRAM = """
import importlib, inspect, re, sys, warnings
from collections import Counter
warnings.simplefilter("ignore")
from spark_estimator import compat
compat.install(force=True)
missing = []
for line in open(sys.argv[1]):
    module, name = line.split()
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        missing.append(f"{module}.{name}: {error}")
print("\\n".join(missing))

from sphinx_reference import api

public = {module: names for module, names in api.public_names().items() if module.startswith("spark_estimator")}
assert public.keys() == set(api.MODULES), public.keys() ^ set(api.MODULES)
count = 0
for module, names in public.items():
    imported, page = importlib.import_module(module), api.module_page(module)
    directive = r"^\\.\\. (?:auto(?:class|exception|function)|py:data):: ([\\w.]+)"
    entries = Counter(re.findall(directive, page, re.MULTILINE))
    entries.update(f"{module}.{name}" for name in re.findall(r"\\{py:obj\\}`(\\w+) <", page))
    if not inspect.getdoc(imported):
        print(f"{module} has no docstring")
    for name in names:
        value = getattr(imported, name)
        if inspect.ismodule(value) and name not in api.VALUES:
            entries[f"{module}.{name}"] += page.count(f"automodule:: {value.__name__}\\n")
        if entries[f"{module}.{name}"] != 1:
            print(f"{module}.{name} is {entries[f'{module}.{name}']} times on its page")
        is_value = name in api.VALUES and not inspect.isroutine(value) and not inspect.isclass(value)
        own = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
        if not is_value and not (own or "").strip():
            print(f"{module}.{name} has no docstring")
        if inspect.isclass(value) and value.__module__.startswith("spark_estimator"):
            for member, attribute in vars(value).items():
                called = inspect.isroutine(getattr(attribute, "__func__", attribute)) or isinstance(attribute, property)
                if called and not member.startswith("_") and not inspect.getdoc(getattr(value, member)):
                    print(f"{module}.{name}.{member} has no docstring")
        count += 1
assert count > 400, count
"""


@pytest.mark.timeout(180)
def test_every_public_name_is_importable_and_described() -> None:
    for needed in ("torch", "tensorflow", "keras", "lightning", "pyspark"):
        pytest.importorskip(needed)
    path = os.pathsep.join(map(str, (ROOT, ROOT / "docs")))
    environment = {**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "torch", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ROOT / "tests" / "public_names.txt")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr[-2000:]
