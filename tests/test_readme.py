"""What README.md shows runs as it stands there, and what it names exists."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_estimator.launch.spark.java import java_environment

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


PYTHON_BLOCKS = python_blocks(ROOT / "README.md")


def run(folder: Path, program: str, *launcher: str) -> str:
    (folder / "train.py").write_text(program)
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    # As in an environment that is activated.
    environ |= {"PATH": os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]]), **java_environment()}
    answer = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.mark.timeout(240)
def test_the_estimator(tmp_path: Path) -> None:
    output = run(tmp_path, PYTHON_BLOCKS[1])
    accuracy = re.search(r"^accuracy (\S+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) > 0.9, output
    assert "inside__output" in output


@pytest.mark.timeout(240)
def test_the_function_on_spark(tmp_path: Path) -> None:
    loss = re.search(r"^loss (\S+)$", run(tmp_path, PYTHON_BLOCKS[0]), re.MULTILINE)
    assert loss
    assert 0 <= float(loss[1]) < 0.1, "100 steps bring it down from 4"


def test_the_script_on_two_ranks(tmp_path: Path) -> None:
    assert "horovodrun -np 2 python train.py" in README
    output = run(tmp_path, PYTHON_BLOCKS[2], "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:rank {rank} of 2: 0.5\n" in output


def test_the_collectives_on_arrays(tmp_path: Path) -> None:
    (block,) = python_blocks(ROOT / "spark_estimator" / "README.md")
    output = run(tmp_path, block, "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    assert "rank 1 came last" in output
    assert "reducescatter" in output


def test_the_script_that_outlives_its_ranks(tmp_path: Path) -> None:
    assert "horovodrun -np 3 --min-np 2 python train.py" in README
    program = PYTHON_BLOCKS[3]
    line = "            state.commit()"
    dies = "            if state.epoch == 1 and hvd.size() == 3 and hvd.rank() == 1:\n"
    dies += "                import os; os._exit(9)\n"
    assert line in program
    launcher = ("-m", "spark_estimator", "run", "-np", "3", "--min-np", "2", sys.executable)
    output = run(tmp_path, program.replace(line, dies + line), *launcher)
    ends = re.findall(r"rank (\d) of 2: (.*)", output)
    assert [rank for rank, _ in sorted(ends)] == ["0", "1"] and len({weights for _, weights in ends}) == 1, output
    assert all(abs(float(weight) - 1) < 0.2 for weight in re.findall(r"[\d.]+", ends[0][1])), output


def test_ddp_on_two_ranks(tmp_path: Path) -> None:
    output = run(tmp_path, PYTHON_BLOCKS[4], "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:rank {rank} of 2: 4.0\n" in output


@pytest.mark.timeout(240)
def test_lightning_on_spark(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    loss = re.search(r"^loss (\S+)$", run(tmp_path, PYTHON_BLOCKS[5]), re.MULTILINE)
    assert loss
    assert 0 <= float(loss[1]) < 0.1, "it is 4 in the beginning"


@pytest.mark.timeout(240)
def test_the_estimator_of_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    output = run(tmp_path, PYTHON_BLOCKS[6])
    accuracy = re.search(r"^accuracy (\S+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) > 0.9, output
    assert "inside__output" in output


def test_tensorflow_on_two_ranks(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed here")
    output = run(tmp_path, PYTHON_BLOCKS[7], "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:rank {rank} of 2: [1.0, 1.0]\n" in output


def test_keras_on_two_ranks(tmp_path: Path) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed here")
    output = run(tmp_path, PYTHON_BLOCKS[8], "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    losses = re.findall(r"rank \d of 2: loss (\S+)", output)
    assert len(losses) == 2 and len(set(losses)) == 1, output
    assert float(losses[0]) < 0.5, "it is 4 and more in the beginning"


@pytest.mark.timeout(240)
def test_the_estimator_of_keras(tmp_path: Path) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed here")
    output = run(tmp_path, PYTHON_BLOCKS[9])
    accuracy = re.search(r"^accuracy (\S+)$", output, re.MULTILINE)
    assert accuracy and float(accuracy[1]) > 0.9, output
    assert "inside__output" in output


def test_tensors_on_gpus_where_there_may_be_none(tmp_path: Path) -> None:
    output = run(tmp_path, PYTHON_BLOCKS[10], "-m", "spark_estimator", "run", "-np", "2", sys.executable)
    assert len(re.findall(r"rank \d of 2 on \w+: \[0\.0, 0\.5\]", output)) == 2, output


def test_no_block_goes_untested() -> None:
    assert len(PYTHON_BLOCKS) == 11


def test_the_names_in_its_table_exist() -> None:
    import spark_estimator.torch as hvd

    table = README.partition("What is there, in `spark_estimator.torch`:")[2].partition("\n## ")[0]
    table, _, of_tensorflow = table.partition("`spark_estimator.tensorflow` has")
    of_tensorflow, _, rest = of_tensorflow.partition("\n\n")
    rest, _, of_keras = rest.partition("`spark_estimator.keras` has")
    of_keras, _, end = of_keras.partition("\n\n")
    table += rest + end
    names = {name for name in re.findall(r"`(\w+)`", table) if not name.endswith("_factor") and name != "_async"}
    assert len(names) > 20
    assert not names - set(hvd.__all__)
    # Read, not imported: TensorFlow takes ten seconds.
    source = (ROOT / "spark_estimator" / "tensorflow" / "__init__.py").read_text()
    offered = set(re.findall(r'^    "(\w+)",$', source, re.MULTILINE))
    names = set(re.findall(r"`(\w+)`", of_tensorflow))
    assert len(names) > 7
    assert not names - offered - {"elastic", "TensorFlowState", "TensorFlowKerasState"}
    sources = [path.read_text() for path in (ROOT / "spark_estimator" / "keras").glob("*.py")]
    offered = {name for source in sources for name in re.findall(r'^    "(\w+)",$', source, re.MULTILINE)}
    names = set(re.findall(r"`([A-Z]\w+)`", of_keras))
    assert len(names) > 8
    assert not names - offered
    absent = README.partition("## What is not there yet")[2].partition("TensorFlow, Keras")[0]
    assert not {name for name in re.findall(r"`(\w+)`", absent) if name != "local_rank" and hasattr(hvd, name)}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_its_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_verbs_that_it_names_are_in_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|\s+#|\s*$)", (ROOT / page).read_text(), re.MULTILINE))
        assert not named - verbs
