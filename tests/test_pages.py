"""What notebooks and examples show runs, and the links of all pages lead to files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")])
# The build of the documentation writes these, and checks the links to them.
GENERATED = (ROOT / "docs/reference", ROOT / "docs/errors.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    targets = [(page.parent / link).resolve() for link in links]
    missing = [target for target in targets if not target.exists()]
    assert not [target for target in missing if not any(target.is_relative_to(path) for path in GENERATED)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("notebook", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("pyspark")
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    book = nbformat.read(notebook, as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells), "notebooks are kept without their output"
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    texts = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
    if notebook.stem == "horovod_runner":
        assert any("[1]<stdout>:epoch 3: loss" in text for text in texts)
        assert any("rank 1 on" in text and "this rank has read a broken file" in text for text in texts)
    else:
        assert any(re.fullmatch(r"0\.9\d+", text) for text in texts), texts


@pytest.mark.timeout(150)
def test_the_notebook_of_the_bundle_runs(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, ROOT / "docs/databricks/train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 150: loss" in done.stdout


def test_the_bundle_names_what_is_there() -> None:
    bundle = (ROOT / "docs/databricks/databricks.yml").read_text()
    assert (ROOT / "docs/databricks" / re.findall(r"notebook_path: (\S+)", bundle)[0]).exists()
    keys = dict(re.findall(r"- ?(job_cluster_key|task_key): (\S+)", bundle))
    assert re.findall(r"^ +job_cluster_key: (\S+)$", bundle, re.MULTILINE) == [keys["job_cluster_key"]]
    declared = set(re.findall(r"^  (\w+):\n    description", bundle, re.MULTILINE))
    assert set(re.findall(r"\$\{var\.(\w+)\}", bundle)) == declared
