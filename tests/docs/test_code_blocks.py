"""Runs the code blocks of README.md and of the documentation as a reader would, and checks what they print."""

from __future__ import annotations

import html
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_estimator.launch.spark.java_environment import choose_java_environment
from tests.docs.page_blocks import LANGUAGES, ROOT, blocks_of, pages
from tools import draw_fit


@dataclass(frozen=True)
class Program:
    """Python blocks of one page that run as one program, `train.py`.

    Attributes:
        page: relative to the repository.
        blocks: numbers of its Python blocks, from 0.
        check: gets what the program printed on stdout and stderr.
        launcher: arguments of `horovodrun`; none: the program runs in one process.
        needs: a module without which the program is skipped.
        edit: changes the program before it runs.
        slow: runs in `make test-all` only: tests of the package cover what it does.
    """

    page: str
    blocks: tuple[int, ...]
    check: Callable[[str], None]
    launcher: tuple[str, ...] = ()
    needs: str = "torch"
    edit: Callable[[str], str] | None = None
    slow: bool = False


def prints(*patterns: str) -> Callable[[str], None]:
    """A check for regular expressions, each of which must match the beginning of a line."""

    def check(output: str) -> None:
        for pattern in patterns:
            assert re.search("^" + pattern, output, re.MULTILINE), f"{pattern!r} is missing in:\n{output}"

    return check


def prints_number(name: str, least: float, most: float) -> Callable[[str], None]:
    """A check for a line ``name 0.93`` whose number is between the two."""

    def check(output: str) -> None:
        number = re.search(rf"^{name} (\S+)$", output, re.MULTILINE)
        assert number, output
        assert least <= float(number[1]) <= most, output

    return check


def prints_on_both_ranks(line: str) -> Callable[[str], None]:
    """A check for ``rank 0 of 2`` and ``rank 1 of 2``, each followed by `line`, a regular expression."""
    return prints(*(rf"\[{rank}\]<stdout>:rank {rank} of 2{line}$" for rank in (0, 1)))


def fits_and_predicts(output: str) -> None:
    prints_number("accuracy", 0.9, 1)(output)
    assert "inside__output" in output


def runs_and_fits(output: str) -> None:
    prints_number("loss", 0, 0.1)(output)  # 100 steps bring it down from 4
    fits_and_predicts(output)


def has_equal_losses(output: str) -> None:
    losses = re.findall(r"rank \d of 2: loss (\S+)", output)
    assert len(losses) == 2 and len(set(losses)) == 1, output
    assert float(losses[0]) < 0.5, "it is 4 and more in the beginning"


def dies_in_the_second_epoch(program: str) -> str:
    """Kills rank 1 of 3 in the loop of the elastic program."""
    line = "            state.commit()"
    assert line in program
    dies = "            if state.epoch == 1 and hvd.size() == 3 and hvd.rank() == 1:\n"
    dies += "                import os; os._exit(9)\n"
    return program.replace(line, dies + line)


def dies_after_a_commit(program: str) -> str:
    """Kills rank 1 of the elastic program with checkpoints, between two of them."""
    line = "            checkpointer.step()\n"
    assert line in program
    dies = "            if state.step == 15 and hvd.rank() == 1 and not os.path.exists('died'):\n"
    dies += "                open('died', 'w').close()\n                os._exit(9)\n"
    return "import os\n" + program.replace(line, dies + line)


def outlives_a_rank(output: str) -> None:
    ends = re.findall(r"rank (\d) of 2: (.*)", output)
    assert [rank for rank, _ in sorted(ends)] == ["0", "1"] and len({weights for _, weights in ends}) == 1, output
    assert all(abs(float(weight) - 1) < 0.2 for weight in re.findall(r"[\d.]+", ends[0][1])), output


def shows_the_picture(output: str) -> None:
    """The picture of the front page has the lines that its program prints, but for the numbers."""
    picture = draw_fit.PICTURE.read_text()
    shown = [html.unescape(line) for line in re.findall(r"<text [^>]*>(.*)</text>", picture)][1:]
    masked = [[re.sub(r"\d+(\.\d+)?", "0", line) for line in lines] for lines in (shown, output.splitlines())]
    assert not [line for line in masked[0] if line not in masked[1]], "run python -m tools.draw_fit"


TWO = ("-np", "2")
PROGRAMS = (
    Program("README.md", (0, 1), runs_and_fits),
    Program("docs/index.md", (0,), shows_the_picture, slow=True),
    Program("README.md", (2,), prints_on_both_ranks(r": 0\.5"), TWO),
    Program(
        "docs/tutorials/notebook.md",
        (0, 1, 2, 3, 4),
        prints(
            r".*\[1\]<stdout>:epoch 4: loss 0\.\d+, accuracy 0\.[89]",
            r".*\[0\.\d+, 0\.\d+, 0\.\d+, 0\.\d+, 0\.[89]\d*\]",
            r".*rank 1 on \S+: rank 1 .* raised ValueError: part-00001 is not a Parquet file",
        ),
        needs="sklearn",
        slow=True,
    ),
    Program(
        "docs/tutorials/dataframe.md",
        (0, 1, 2, 3, 4, 5),
        prints(r".*\[0\] epoch 10/10", r".*accuracy 0\.9", "predicted 0 expected 0"),
        needs="sklearn",
        slow=True,
    ),
    Program(
        "docs/tutorials/horovod-script.md", (0,), prints_on_both_ranks(" is ready"), TWO, needs="sklearn", slow=True
    ),
    Program("docs/tutorials/horovod-script.md", (1,), prints(r".*\[\(0, 0\.5\), \(1, 0\.5\)\]"), slow=True),
    Program(
        "docs/tutorials/horovod-runner.md",
        (0, 1, 2, 3, 4),
        prints(r".*\[0\]<stdout>:step 75: loss 0\.00", r".*loss \d"),
        slow=True,
    ),
    Program("docs/how-to/torch-distributed.md", (1,), prints(r"6\.0"), slow=True),
    Program("docs/how-to/functions.md", (0,), prints(r"\(15, 2\)$"), slow=True),
    Program(
        "docs/how-to/elastic-jobs.md",
        (0,),
        outlives_a_rank,
        ("-np", "3", "--min-np", "2"),
        edit=dies_in_the_second_epoch,
        slow=True,
    ),
    Program("docs/how-to/jax.md", (0,), prints_on_both_ranks(r": 0\.5"), TWO, needs="jax"),
    Program(
        "docs/how-to/jax.md", (1,), prints_on_both_ranks(r": \[0\.5, 0\.5, 0\.5\] \[0\.0, 1\.0\]"), TWO, needs="jax"
    ),
    Program("docs/how-to/torch-distributed.md", (0,), prints_on_both_ranks(r": 4\.0"), TWO),
    Program("docs/how-to/training-steps.md", (0,), prints_number("best AUC", 0.97, 1), needs="torchmetrics", slow=True),
    Program(
        "docs/how-to/hugging-face.md", (0,), prints_on_both_ranks(r": loss \d\.\d+"), TWO, needs="accelerate", slow=True
    ),
    Program(
        "docs/how-to/dataframes.md",
        (0,),
        prints(r"accuracy (0\.9|1\.0)", r"\['Berlin', 'Paris', 'Rome'\]$"),
        slow=True,
    ),
    Program("docs/how-to/lightning.md", (0,), prints_number("loss", 0, 0.1), needs="lightning", slow=True),
    Program("docs/how-to/lightning.md", (1,), fits_and_predicts, needs="lightning", slow=True),
    Program(
        "docs/how-to/tensorflow.md", (0,), prints_on_both_ranks(r": \[1\.0, 1\.0\]"), TWO, needs="tensorflow", slow=True
    ),
    Program("docs/how-to/keras.md", (0,), has_equal_losses, TWO, needs="keras", slow=True),
    Program("docs/how-to/keras.md", (2,), fits_and_predicts, needs="keras", slow=True),
    Program("docs/how-to/gpus.md", (0,), prints_on_both_ranks(r" on \w+: \[0\.0, 0\.5\]"), TWO, slow=True),
    Program("docs/how-to/fewer-bytes.md", (0,), prints(r"\[0\]<stdout>:bytes 41\d\d\d$"), TWO, slow=True),
    Program("docs/how-to/fewer-bytes.md", (1,), prints(r"\[0\]<stdout>:exchanges 3$"), TWO, slow=True),
    Program("docs/how-to/checkpoints.md", (0,), prints("the last attempt began after step (10|20)$"), slow=True),
    Program(
        "docs/how-to/checkpoints.md",
        (1,),
        prints("horovodrun: lost rank 1 ", r".*\bsteps 25$"),
        ("-np", "2", "--min-np", "1"),
        edit=dies_after_a_commit,
        slow=True,
    ),
    Program(
        "docs/how-to/debug-a-hang.md",
        (0,),
        prints(r".*allreduce 'allreduce\.gradient' has waited \d s for rank 1, which did not", r".*time\.sleep\(8\)"),
        slow=True,
    ),
    Program("docs/how-to/why-is-it-slow.md", (1,), prints("100$"), slow=True),
    Program("docs/how-to/profile-a-rank.md", (0, 1), prints(r" +\d+\.\d+ ms  spark_estimator\.exchange$"), slow=True),
    Program("docs/how-to/timeline.md", (0,), prints(r"\['t\.json', 't\.rank1\.json'\]"), slow=True),
    Program("docs/how-to/logging-and-mlflow.md", (0,), prints(r"\[0\] epoch 3: loss 0\.41"), slow=True),
    Program(
        "docs/how-to/logging-and-mlflow.md",
        (2,),
        prints(r"\s+y__output$", r"\|\s+x\|\s+prediction\|"),
        needs="mlflow",
        slow=True,
    ),
    Program(
        "docs/how-to/search-parameters.md",
        (1,),
        prints(r"\d complete, [1-9] pruned, best loss [01]\."),
        needs="optuna",
        edit=lambda program: program.replace('"study.log"', '__import__("os").path.abspath("study.log")'),
        slow=True,
    ),
    Program("docs/how-to/petastorm.md", (0,), prints(r".*accuracy of the last batch: 1\.0"), slow=True),
    Program("docs/how-to/petastorm.md", (1,), prints(r".*loss below 0\.1: True"), needs="tensorflow", slow=True),
    Program("docs/explanation/allreduce.md", (0,), prints(r".*rank 1 came last", r".*reducescatter"), TWO),
)


def run(folder: Path, program: str, *launcher: str) -> str:
    (folder / "train.py").write_text(program)
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    # As in an environment that is activated.
    environ |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ["PATH"]]),
        **choose_java_environment(),
    }
    done = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=folder,
        env=environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(item, id=f"{item.page}-{item.blocks[0]}", marks=[pytest.mark.slow] if item.slow else [])
        for item in PROGRAMS
    ],
)
def test_the_code_of_a_page(program: Program, tmp_path: Path) -> None:
    if importlib.util.find_spec(program.needs) is None:
        pytest.skip(f"{program.needs} is not installed here")
    code = [block.text for block in blocks_of(program.page, "python")]
    text = "\n".join(code[index] for index in program.blocks)
    launcher = ("-m", "spark_estimator", "run", *program.launcher, sys.executable) if program.launcher else ()
    program.check(run(tmp_path, program.edit(text) if program.edit else text, *launcher))


def test_every_block_runs_or_has_a_reason() -> None:
    runs = {(program.page, index) for program in PROGRAMS for index in program.blocks}
    missing = [
        f"{block.page}:{block.line}"
        for page in pages()
        for block in blocks_of(page)
        if block.language in LANGUAGES
        and not block.not_run
        and not (block.language == "python" and (block.page, block.index) in runs)
    ]
    assert not missing, "neither in PROGRAMS nor marked '<!-- not run: <reason> -->': " + ", ".join(missing)


def test_no_block_runs_that_is_marked_as_not_run() -> None:
    for program in PROGRAMS:
        blocks = blocks_of(program.page, "python")
        assert not [index for index in program.blocks if blocks[index].not_run], program.page


def test_launched_scripts_have_the_command_of_their_page() -> None:
    """The pages show the command with which `PROGRAMS` starts the script."""
    for program in PROGRAMS:
        if program.launcher and program.page.startswith(("README", "docs")):
            command = f"horovodrun {' '.join(program.launcher)} python train.py"
            assert command in (ROOT / program.page).read_text(), program.page


@pytest.mark.slow
def test_the_merge_command_of_the_timeline_page(tmp_path: Path) -> None:
    page = "docs/how-to/timeline.md"
    (command,) = [block.text for block in blocks_of(page, "sh") if " timeline merge " in block.text]
    run(tmp_path, blocks_of(page, "python")[0].text)
    python, *arguments = command.split()
    assert python == "python"
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert "NEGOTIATE_ALLREDUCE" in (tmp_path / "all.json").read_text()


def test_the_names_that_the_pages_list_exist() -> None:
    import spark_estimator.torch as hvd

    page = (ROOT / "docs/how-to/move-code.md").read_text()
    table = page.partition("In `spark_estimator.torch`:")[2].partition("\n## ")[0]
    names = {name for name in re.findall(r"`(\w+)`", table) if not name.endswith("_factor") and name != "_async"}
    assert len(names) > 20
    assert not names - set(hvd.__all__)
    # Read, not imported: TensorFlow takes ten seconds.
    source = (ROOT / "spark_estimator" / "tensorflow" / "__init__.py").read_text()
    offered = set(re.findall(r'^    "(\w+)",$', source, re.MULTILINE))
    page = (ROOT / "docs/how-to/tensorflow.md").read_text()
    listed = page.partition("- `DistributedGradientTape`")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+)`", listed))
    assert len(names) > 7
    assert not names - offered - {"elastic", "TensorFlowState", "TensorFlowKerasState", "MonitoredTrainingSession"}
    sources = [path.read_text() for path in (ROOT / "spark_estimator" / "keras").glob("*.py")]
    offered = {name for source in sources for name in re.findall(r'^    "(\w+)",$', source, re.MULTILINE)}
    page = (ROOT / "docs/how-to/keras.md").read_text()
    names = set(re.findall(r"`([A-Z]\w+)`", page.partition("`spark_estimator.keras` contains")[2].partition("\n\n")[0]))
    assert len(names) > 8
    assert not names - offered


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_its_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_verbs_that_it_names_are_in_the_makefile() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"\bmake ([a-z-]+)\b(?=`|\s+#|\s*$)", (ROOT / page).read_text(), re.MULTILINE))
        assert not named - verbs
