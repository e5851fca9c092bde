"""Two existing users' programs, run as their users run them on real data; they do not know this package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from spark_estimator.compat import real_horovod_present, shims_path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parents[1]
CLASSIC = SCRIPTS / "classic_horovod_script.py"
NOTEBOOK = SCRIPTS / "databricks_notebook_cell.py"
SECONDS = 150

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS + 60),
    pytest.mark.skipif(real_horovod_present(), reason="a real Horovod is installed here"),
]


def run(command: Sequence[str | Path], folder: Path, path: Sequence[str | Path]) -> str:
    """The command's output, both streams; fails with it when the command does or hangs."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "options", [(), ("--fp16-allreduce", "--gradient-predivide-factor", "2.0")], ids=["as it is", "with options"]
)
def test_classic_script_under_horovodrun(tmp_path: Path, options: tuple[str, ...]) -> None:
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2"]
    output = run([*horovodrun, sys.executable, CLASSIC, "--lr", "0.03", *options], tmp_path, [ROOT])
    # The script prints on rank 0 only, of the loss and of what both ranks measured.
    assert {line[:3] for line in output.splitlines() if "Epoch" in line} == {"[0]"}
    accuracies = [float(percent) for percent in re.findall(r"Accuracy: ([\d.]+)%", output)]
    assert len(accuracies) == 8
    assert accuracies[-1] > 85
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == [f"checkpoint-{n}.pth.tar" for n in range(1, 9)]
    saved = torch.load(tmp_path / "checkpoint-8.pth.tar", weights_only=True)
    assert len(saved["optimizer"]["state"]) == len(saved["model"]) == 8


def test_classic_script_by_itself_is_a_job_of_one(tmp_path: Path) -> None:
    output = run([sys.executable, CLASSIC, "--epochs", "1"], tmp_path, [shims_path(), ROOT])
    assert "[0/1500]" in output
    assert (tmp_path / "checkpoint-1.pth.tar").exists()


def test_notebook_cell_as_a_program(tmp_path: Path) -> None:
    output = run([sys.executable, NOTEBOOK], tmp_path, [shims_path(), ROOT])
    assert_trained(output)


def test_notebook_cell_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([shims_path(), str(ROOT)]))
    cells = NOTEBOOK.read_text().partition("\n")[2].split("# COMMAND ----------\n")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    client = nbclient.NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = [output for cell in notebook.cells for output in cell.outputs if output.output_type == "stream"]
    assert_trained("".join(output.text for output in printed))


def assert_trained(output: str) -> None:
    match = re.search(r"^2 ranks, accuracy ([\d.]+), and ([\d.]+) here$", output, re.MULTILINE)
    assert match, output
    assert match[1] == match[2]  # the driver has the complete state
    assert float(match[1]) > 0.85
