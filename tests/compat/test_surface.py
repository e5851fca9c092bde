"""The table of Horovod's public items: it is current, nothing is missing, and the lookup can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.compat.surface import DIFFERENCES, ITEMS, PAGE, ROOT, Item, items, names_of, page_with


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


PROGRAM = """
from spark_estimator import compat
compat.install()
from tests.compat.surface import PAGE, Status, items, lookup, page_with, status_of, table
assert lookup(3, "allreduce") is Status.REAL and lookup(3, "nothing") is Status.MISSING
assert lookup(10, "NVTabularDataModule") is Status.SENTENCE
assert lookup(14, "--num-proc") is Status.REAL and lookup(14, "--nothing") is Status.MISSING
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
