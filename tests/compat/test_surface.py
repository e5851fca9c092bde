"""The table of Horovod's public items: it is current, nothing is missing, and the lookup can fail."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.compat.surface import (
    BEHAVIOUR,
    DIFFERENCES,
    ITEMS,
    PAGE,
    ROOT,
    Item,
    Status,
    items,
    lookup,
    names_of,
    page_with,
    status_of,
    table,
)


def test_items_and_their_names() -> None:
    assert len(items()) == 413
    rarities = [item.rarity for item in items()]
    assert (rarities.count("core"), rarities.count("common"), rarities.count("rare")) == (73, 186, 130)
    assert not DIFFERENCES.keys() - {(item.section, item.text) for item in items()}, "not in the list"
    assert list(names_of("`init(comm=[ranks])`, `average=`, `-np`, `--num-proc`, behaviour")) == [
        "init",
        "average",
        "-np",
        "--num-proc",
    ]
    assert page_with("Text.\n\n## All items\n\nold\n", ["new"]) == "Text.\n\n## All items\n\nnew\n"
    assert ITEMS.exists() and isinstance(items()[0], Item)


def test_behaviour_has_its_test() -> None:
    assert not BEHAVIOUR.keys() & DIFFERENCES.keys()
    for key, test in BEHAVIOUR.items():
        assert any(key == (item.section, item.text) for item in items()), key
        path, name = test.split("::")
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), test


def test_flags_and_variables_say_what_they_do() -> None:
    for section, name, status in (
        (14, "--num-proc", Status.REAL),
        (14, "--autotune", Status.NO_EFFECT),
        (14, "--nothing", Status.MISSING),
        (16, "HOROVOD_FUSION_THRESHOLD", Status.REAL),
        (16, "HOROVOD_RANK", Status.REAL),
        (16, "_WARMUP_SAMPLES", Status.NO_EFFECT),
        (16, "HOROVOD_SECRET_KEY", Status.NO_EFFECT),
        (16, "HOROVOD_NOTHING", Status.MISSING),
    ):
        assert lookup(section, name) is status, name
    made = [Item(16, "rare", text) for text in ("`HOROVOD_RANK`, `HOROVOD_CYCLE_TIME`", "`HOROVOD_GLOO_IFACE`")]
    lines = table([(item, status_of(item)) for item in made])
    assert lines[2].endswith(
        "| `HOROVOD_RANK`: real; `HOROVOD_CYCLE_TIME`: no effect: the engine has no cycle: each request wakes it |"
    )
    assert lines[3].endswith("| no effect: the launcher selects the address where a rank listens |")
    assert status_of(Item(15, "rare", "something new")) is Status.MISSING  # behaviour that no test is named for


PROGRAM = """
from spark_estimator import compat
compat.install()
from tests.compat.surface import PAGE, Status, items, lookup, page_with, status_of, table
assert lookup(3, "allreduce") is Status.REAL and lookup(3, "nothing") is Status.MISSING
assert lookup(10, "NVTabularDataModule") is Status.SENTENCE
entries = [(item, status_of(item)) for item in items()]
absent = [item for item, status in entries if status in (Status.MISSING, Status.SENTENCE)]
assert not absent, absent
text = PAGE.read_text()
assert page_with(text, table(entries)) == text, "run python -m tests.compat.surface"
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_missing_and_the_page_is_current() -> None:
    for needed in ("torch", "tensorflow", "keras", "lightning", "pyspark"):
        pytest.importorskip(needed)
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.environ['KERAS_BACKEND'] = 'tensorflow'\n{PROGRAM}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert PAGE.exists()
