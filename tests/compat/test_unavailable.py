"""Horovod's names without a counterpart: each is importable, and a call of it names what to use instead."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_estimator import compat
from spark_estimator.compat.aliases import MODULES, PACKAGES
from spark_estimator.compat.unavailable import UNAVAILABLE, make_placeholder


@pytest.fixture
def aliases() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


@pytest.mark.parametrize("module", UNAVAILABLE)
def test_names_are_importable_and_say_what_to_use(module: str, aliases: None) -> None:
    if module.startswith("horovod.tensorflow"):
        pytest.importorskip("tensorflow")
    imported = importlib.import_module(module)
    assert UNAVAILABLE[module]
    for name, sentence in UNAVAILABLE[module].items():
        assert name in dir(imported)
        with pytest.raises(NotImplementedError) as raised:
            getattr(imported, name)("argument", keyword=1)
        assert str(raised.value) == f"{module}.{name} is not available: {sentence}."


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference/horovod.md", ["_keras", "runner.run_task", "runner.task_fn", "runner.task", "runner.util.streams"]),
        ("reference/horovod.md", ["runner.common.util.host_hash", "runner.common.service.driver_service"]),
        ("reference/horovod.md", [f"runner.elastic.{name}" for name in ("constants", "registration", "rendezvous")]),
        ("reference/horovod.md", [f"spark.driver.{name}" for name in ("rsh", "mpirun_rsh", "job_id")]),
        ("reference/horovod.md", [f"spark.task.{name}_exec_fn" for name in ("gloo", "mpirun")]),
        ("how-to/petastorm.md", ["fs_utils", "cache", "local_disk_cache", "utils", "generator", "hdfs", "tools"]),
        ("how-to/petastorm.md", ["reader_impl", "workers_pool"]),
    ],
)
def test_modules_that_are_missing_are_documented(page: str, names: list[str], aliases: None) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    root = "petastorm" if "petastorm" in page else "horovod"
    for name in names:
        assert name.removeprefix("runner.").removeprefix("spark.").removesuffix(".driver_service") in text
        with pytest.raises(ModuleNotFoundError, match=rf"{root}.{name}.*available: "):
            importlib.import_module(f"{root}.{name}")


def test_a_subclass_can_be_defined_and_says_it_when_it_is_made() -> None:
    base = make_placeholder("horovod.some.Module", "use another")
    derived = type("Derived", (base,), {})
    assert (base.__module__, base.__name__) == ("horovod.some", "Module")
    with pytest.raises(NotImplementedError, match=r"horovod\.some\.Module is not available: use another\."):
        derived()


def test_no_name_is_served_twice() -> None:
    for module, names in UNAVAILABLE.items():
        assert module not in MODULES
        assert not names.keys() & PACKAGES[module].keys()
