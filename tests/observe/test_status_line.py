"""The status line: its text, where it is shown and where not, and that it does not break the ranks' lines."""

from __future__ import annotations

import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.observe.progress import Progress
from spark_estimator.observe.status_line import Log, ProgressDisplay, StatusLine, find_screen, format_status
from spark_estimator.observe.training_meter import TrainingReport

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100
ERASE = "\r\x1b[2K"

SCRIPT = """
import sys
import time
import numpy
from spark_estimator.collectives import arrays, context

context.init()
seconds = float(sys.argv[1])
end = time.monotonic() + seconds
for step in range(10_000):
    together = arrays.allreduce(numpy.array([float(time.monotonic() < end)]), arrays.ReduceOp.MIN, name="step")
    if step % 100 == 0:
        print(f"step {step} " + "x" * 200, flush=True)
    if not together[0]:
        break
    time.sleep(0.005)
if context.rank() == 1:
    time.sleep(seconds)
arrays.allreduce(numpy.ones(1), name="last")
print("the end", flush=True)
"""

CELL = """
import os
os.environ.pop("CI", None)
from spark_estimator import HorovodRunner

def train():
    import time
    import torch
    import spark_estimator.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    end = time.monotonic() + 3.5
    while hvd.allreduce(torch.tensor(float(time.monotonic() < end)), name="goes on", op=hvd.Min):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    print("trained", flush=True)
    return "returned"

HorovodRunner(np=-2).run(train)
"""


FIT = """
import os
os.environ.pop("CI", None)
import time
import torch
from pyspark.sql import SparkSession
from spark_estimator import TorchEstimator

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)

def error(output, label):
    time.sleep(0.1)
    return (output - label).abs().mean()

model = torch.nn.Linear(1, 1)
estimator = TorchEstimator(
    num_proc=2, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.01), loss=torch.nn.MSELoss(),
    metrics=[error], feature_cols=["x"], label_cols=["y"], batch_size=10, epochs=3,
)
frame = spark.range(200).selectExpr("id / 200 as x", "id / 100 as y")
len(estimator.fit(frame).getHistory())
"""


def reports(*seconds_steps_calls: tuple[float, int, int], waiting: float = 0.0) -> list[Progress]:
    where = "allreduce 'x'" if waiting else ""
    return [Progress(at, steps, calls, waiting, where) for at, steps, calls in seconds_steps_calls]


def test_what_it_says() -> None:
    assert format_status(4, {0, 2}, {}, {}) == "2 of 4 ranks up"
    even = {0: reports((1, 10, 0), (3, 30, 0)), 1: reports((9, 10, 0), (11, 30, 0))}
    assert format_status(2, {0, 1}, even, {0: 0.1, 1: 0.2}) == "2 of 2 ranks up; 10 steps/s"
    uneven = {0: reports((1, 0, 10), (3, 0, 30)), 1: reports((9, 0, 10), (11, 0, 20))}
    text = format_status(2, {0, 1}, uneven, {0: 0.1, 1: 0.2})
    assert text == "2 of 2 ranks up; 5 collectives/s (rank 1) to 10"
    waits = {rank: reports((1, 0, 10), waiting=2.0) for rank in (0, 2)}
    text = format_status(4, range(4), waits, {0: 1.0, 2: 5.0})
    assert text.endswith("up; 2 ranks wait for ranks 1, 3 since 7 s in allreduce 'x'")
    waits |= {rank: reports((1, 0, 10), waiting=2.0) for rank in (1, 3)}
    assert "wait" not in format_status(4, range(4), waits, dict.fromkeys(range(4), 0.0)), (
        "all wait, so for none of them"
    )


def horovodrun(tmp_path: Path, seconds: float) -> tuple[list[str], dict[str, str]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if name != "CI"}
    environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    return [
        sys.executable,
        "-m",
        "spark_estimator.launch.cli.main",
        "-np",
        "2",
        sys.executable,
        str(script),
        str(seconds),
    ], environ


def on_a_terminal(command: list[str], environ: dict[str, str]) -> str:
    """All that a command has written to its terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        deadline, output = time.monotonic() + SECONDS, b""
        while True:
            assert time.monotonic() < deadline, f"horovodrun still runs after {SECONDS} s: {output[-2000:]!r}"
            if select.select([ours], [], [], 1)[0]:
                try:
                    output += os.read(ours, 1 << 16)
                except OSError:  # no process has it open any more
                    break
        os.close(ours)
        assert process.wait(20) == 0, output
    return output.decode()


def test_on_a_terminal_it_stands_below_the_lines_and_vanishes(tmp_path: Path) -> None:
    command, environ = horovodrun(tmp_path, 3.5)
    output = on_a_terminal(command, environ)
    assert "2 of 2 ranks up" in output
    assert re.search(r"2 of 2 ranks up; \d[\d.]* collectives/s", output), output
    assert re.search(r"rank 0 waits for rank 1 since [1-4] s", output), output
    # What is seen in the end: of each line, what was written after it was last erased.
    seen = [line.rpartition(ERASE)[2].rstrip("\r") for line in output.split("\n")]
    assert seen[-1] == ""
    for rank in (0, 1):
        rank_lines = [line for line in seen if line.startswith(f"[{rank}]<stdout>:")]
        assert rank_lines[0] == f"[{rank}]<stdout>:step 0 {'x' * 200}" and rank_lines[-1] == f"[{rank}]<stdout>:the end"
        assert len(rank_lines) > 3 and all(line.endswith("x" * 200) for line in rank_lines[:-1])
    assert len([line for line in seen if line]) == sum(
        line.startswith(("[0]<stdout>:", "[1]<stdout>:")) for line in seen
    )


def read_to(terminal: int, end: str) -> str:
    """What a terminal has shown until `end`, in which ``.*`` matches anything."""
    output, wanted = "", ".*".join(map(re.escape, end.split(".*"))) + "$"
    deadline = time.monotonic() + SECONDS
    while not re.search(wanted, output, re.DOTALL):
        assert time.monotonic() < deadline, f"no {end!r} within {SECONDS} s in {output!r}"
        if select.select([terminal], [], [], 1)[0]:
            output += os.read(terminal, 1 << 16).decode()
    return output


def test_on_spark_it_comes_from_the_executors(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> str:
        import time

        import numpy

        from spark_estimator.collectives import arrays, context

        context.init()
        end = time.monotonic() + 2.5
        while arrays.allreduce(numpy.array([float(time.monotonic() < end)]), arrays.ReduceOp.MIN, name="goes on")[0]:
            time.sleep(0.01)
        print("trained", flush=True)
        return "value"

    ours, theirs = pty.openpty()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w") as terminal, monkeypatch.context() as within:
        within.setattr(sys, "stderr", terminal)
        within.setattr(sys, "stdout", terminal)
        assert HorovodRunner(np=2, driver_log_verbosity="all").run(train) == "value"
        terminal.flush()
        output = read_to(ours, f"[1]<stdout>:trained\r\n.*{ERASE}")
        assert re.search(r"2 of 2 ranks up; \d[\d.]* collectives/s", output), output
        assert HorovodRunner(np=1).run(lambda: 1) == 1
        print("nothing", flush=True)
        assert read_to(ours, "nothing\r\n") == "nothing\r\n", "by default only messages are shown"
    os.close(ours)


@pytest.mark.parametrize("why", ["a pipe", "CI", "turned off"])
def test_elsewhere_there_is_none(why: str, tmp_path: Path) -> None:
    command, environ = horovodrun(tmp_path, 0.5)
    if why == "a pipe":
        done = subprocess.run(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=True
        )
        output = done.stdout.decode()
    else:
        more = {"CI": "true"} if why == "CI" else {"SPARK_ESTIMATOR_STATUS_LINE": "0"}
        output = on_a_terminal(command, environ | more)
    assert "[1]<stdout>:the end" in output
    assert "\x1b" not in output and "ranks up" not in output


def test_a_log_gets_a_line_of_a_training_when_it_was_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    assert find_screen() is None and find_screen(ProgressDisplay.OFF) is None
    monkeypatch.setattr(Log, "interval", 0.3)
    line = StatusLine.open_on_screen(1, ProgressDisplay.ANYWHERE)
    assert line is not None

    def drawn(seconds: float) -> list[str]:
        """What is printed within this time, in which nothing else is."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line.draw({0})
            time.sleep(0.01)
        return capsys.readouterr().err.splitlines()

    line.note(0, Progress(1.0, 1, 1))
    assert drawn(0.4) == [], "it is no training"
    line.note(0, Progress(2.0, 1, 1, training=TrainingReport(1, 2, "train", 1, 4, 10, 0.5, 10)))
    assert drawn(0.01) == ["spark_estimator: epoch 1/2 [#.........], step 1/4, loss 0.5"]
    line.hide()
    assert drawn(0.2) == [], "something else was printed"
    assert drawn(0.4) == [], "it is the same line"
    for step in (2, 3):
        line.note(0, Progress(1.0 + step, 1, 1, training=TrainingReport(1, 2, "train", step, 4, 10 * step, 0.5, 10)))
        (text,) = drawn(0.4)
        assert text.endswith(f", step {step}/4, 10 rows/s, ETA 0:0{8 - step}, loss 0.5"), text
    line.close()
    assert drawn(0.4) == []
    monkeypatch.setenv("SPARK_ESTIMATOR_STATUS_LINE", "0")
    assert StatusLine.open_on_screen(1, ProgressDisplay.ANYWHERE) is None


def executed(source: str, folder: Path) -> tuple[list[Any], list[dict[str, str]]]:
    """Runs a cell in a kernel. Returns its outputs, and all updates of its own display area."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("torch")
    shown: list[dict[str, str]] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
            if "display_id" in message["content"].get("transient", {}):
                shown.append(message["content"]["data"])
            return super().process_message(message, cell, cell_index)

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    Client(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook.cells[0].outputs, shown


def test_in_a_notebook_it_stands_in_the_cell_s_output_and_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    outputs, data = executed(CELL, tmp_path)
    shown = [each["text/plain"] for each in data]
    assert "2 of 2 ranks up" in shown
    assert re.search(r"2 of 2 ranks up; \d[\d.]* steps/s", "\n".join(shown)), shown
    assert shown[-1] == ""
    assert all(text != next_text for text, next_text in itertools.pairwise(shown)), (
        "it is sent only when it has changed"
    )
    lines = "".join(output.text for output in outputs if output.output_type == "stream").splitlines()
    assert sorted(lines) == ["[0]<stdout>:trained", "[1]<stdout>:trained"]
    assert [output.data["text/plain"] for output in outputs if output.output_type == "display_data"] == [""]
    assert outputs[-1].data["text/plain"] == "'returned'"


@pytest.mark.slow
def test_a_fit_in_a_notebook_shows_a_bar_and_the_loss_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    outputs, shown = executed(FIT, tmp_path)
    training = [each for each in shown if each["text/plain"].startswith("epoch ")]
    texts = "\n".join(each["text/plain"] for each in training)
    assert re.search(r"epoch \d/3 \[#*\.*\], step \d+/10, [\d,]+ rows/s, ETA 0:\d\d, loss [\d.]+", texts), texts
    assert re.search(r"; epoch \d: loss [\d.]+, error [\d.]+", texts), texts
    for each in training:
        assert '<progress style="width:420px" max="3" value=' in each["text/html"]
    assert "<polyline " in training[-1]["text/html"]
    assert shown[-1] == {"text/plain": "", "text/html": ""}
    # At most one for each report of a rank, once a second, and when a rank begins or waits.
    assert len(training) < 40
    lines = "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")
    assert re.search(r"^\[0\] epoch 3/3, train loss [\d.]+, train error [\d.]+$", lines, re.MULTILINE), lines
    assert outputs[-1].data["text/plain"] == "3"
