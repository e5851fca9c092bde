"""The notebook of the Databricks bundle runs, and the links of all pages and notebooks lead to files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md"), *ROOT.glob("notebooks/*.ipynb")]
)
# The build of the documentation writes these, and checks the links to them.
GENERATED = (ROOT / "docs/reference",)


def text_of(page: Path) -> str:
    """A page's text; a notebook's cells of text."""
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text_of(page))
    targets = [(page.parent / link).resolve() for link in links]
    missing = [target for target in targets if not target.exists()]
    assert not [target for target in missing if not any(target.is_relative_to(path) for path in GENERATED)]


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "page",
    [
        "spark_estimator/README.md",
        "native/README.md",
        "native/algorithms/README.md",
        "native/gpu/README.md",
        "CONTRIBUTING.md",
    ],
)
def test_files_that_a_contributors_page_names_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`((?!build/)(?:[\w-]+/)+[\w-]*(?:\.\w+)?)`", text))  # build/ is made by a build
    assert len(named) > 5
    folder = ROOT / next(iter(Path(page).parent.parts), "")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if ".venv" not in path.parts}
    known = "\n".join(f"/{name}\n/{Path(name).with_suffix('')}\n/{name}/" for name in files) + "\n"
    missing = {name for name in named if f"/{name}\n" not in known and not (ROOT / name).exists()}
    assert not missing
