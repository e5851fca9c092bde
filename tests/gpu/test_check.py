"""``check.py`` runs on machines with a GPU; here it is tested as far as possible without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.gpu import building, check, endings, figures, goals, jobs, overlap
from tests.gpu.ways import Way, ways
from tests.ranks import Outcome

SCRIPT = Path(check.__file__)


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--only", "refusals", "--no-figures"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == check.NO_GPU, done
    assert done.stdout.startswith("no GPU here: "), done


def test_its_arguments_are_looked_at() -> None:
    with pytest.raises(SystemExit) as caught:
        check.main(["--nonsense"])
    assert caught.value.code == 2


@pytest.mark.slow
def test_all_ways_are_told_apart_and_measured() -> None:
    names = [way.name for way in ways(2)]
    assert len(set(names)) == len(names) == len(ways(1)) + 1
    for way in [*ways(1), *ways(2)]:
        assert bool(figures.figures(way.name, "")) == way.is_measured, way


# --- the exit code, with the ranks' part left out ---------------------------------------------------------------------


@pytest.fixture
def with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as `main` asks, there is one, and the engine is there."""
    monkeypatch.setattr(check, "look_at_gpus", lambda: (1, "none"))
    monkeypatch.setattr(building, "make_ready", lambda *_, **__: "")
    monkeypatch.setattr(check, "ask_doctor", lambda *_: None)
    monkeypatch.setattr(check, "lose_a_peer", lambda *_: jobs.Result("killed rank", jobs.State.OK))


def results_are(monkeypatch: pytest.MonkeyPatch, description: str, make: Callable[[str], jobs.Result]) -> None:
    monkeypatch.setattr(jobs, "run_in_way", lambda way, tasks, *_: ([make(name) for name in tasks], description))


def test_what_fails_makes_the_exit_code(
    with_a_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results_are(monkeypatch, "NCCL", lambda name: jobs.Result(name, jobs.State.OK))
    assert check.main(["--no-figures"]) == 0
    results_are(monkeypatch, "", lambda name: jobs.Result(name, jobs.State.OK))
    assert check.main(["--no-figures"]) == 1
    assert "nothing has gone from a GPU" in capsys.readouterr().out
    results_are(monkeypatch, "", lambda name: jobs.Result(name, jobs.State.FAILED, "it broke"))
    assert check.main(["--no-figures", "--only", "joining"]) == 1
    assert "FAILED  joining\nit broke\n" in capsys.readouterr().out


def test_goals_are_counted_and_leave_the_exit_code(
    with_a_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (goals.Line("so much"), goals.at_least("share", 59.0, 60, "%"), goals.at_most("cost", 10.0, 10, "us"))
    results_are(monkeypatch, "NCCL", lambda name: jobs.Result(name, jobs.State.OK, lines=lines))
    assert check.main(["--only", "small allreduces"]) == 0
    out = capsys.readouterr().out
    assert "share: 59.00 %, goal at least 60 %: MISSED" in out
    assert "cost: 10.00 us, goal at most 10 us: reached" in out
    assert "goals missed: 3 of 6\nall is right" in out  # in three ways


def test_no_number_reaches_no_goal() -> None:
    for judge in (goals.at_least, goals.at_most):
        assert judge("what", float("nan"), 1, "").reached is False
        assert judge("what", float("inf"), 1, "").reached is False


def test_what_there_is_no_time_for_is_told(with_a_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--limit", "0"]) == 1
    out = capsys.readouterr().out
    assert "  not run joining\nno time was left for it" in out
    assert "  not run two ranks on one GPU, allreduce of 100 MB\n" in out
    assert "\nnot run: " in out and "FAILED" not in out


# --- jobs -------------------------------------------------------------------------------------------------------------

LIMITS = jobs.Limits(job=100, task=4, alone=60)


def begin_without_gpu(rank: int) -> None:
    import torch

    torch.cuda.synchronize = lambda device=None: None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_fails_or_hangs_is_named_and_hides_nothing() -> None:
    def goes_well() -> list[goals.Line]:
        return [goals.at_most("ranks", 2.0, 3, "")]

    def breaks() -> None:
        import spark_estimator.torch as hvd

        if hvd.rank() == 1:
            raise ValueError("it broke")

    def hangs() -> None:
        import time

        import torch

        import spark_estimator.torch as hvd

        def here_it_hangs() -> None:
            time.sleep(1000)

        if hvd.rank() == 1:
            here_it_hangs()
        hvd.allreduce(torch.ones(2))

    tasks = {"first": goes_well, "second": breaks, "third": hangs, "fourth": goes_well}
    results, way = jobs.run_in_way(Way("two", 2, {}), tasks, begin_without_gpu, jobs.Budget(250), LIMITS)
    by_name = {result.name: result for result in results}
    assert way == "" and list(by_name) == list(tasks)
    assert by_name["first"].state is by_name["fourth"].state is jobs.State.OK
    assert [line.reached for line in by_name["first"].lines] == [True]
    assert by_name["second"].state is by_name["third"].state is jobs.State.FAILED
    assert by_name["second"].text.startswith("alone: rank 1: Traceback") and "it broke" in by_name["second"].text
    assert "hung (ranks [" in by_name["third"].text and "here_it_hangs" in by_name["third"].text


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_went_wrong_once_has_failed(tmp_path: Path) -> None:
    been_here = str(tmp_path / "been here")

    def dies_once() -> None:
        import os

        if not os.path.exists(been_here):
            os.close(os.open(been_here, os.O_CREAT))
            os._exit(7)

    tasks = {"first": dies_once, "second": lambda: None}
    results, _ = jobs.run_in_way(Way("one", 1, {}), tasks, begin_without_gpu, jobs.Budget(150), LIMITS)
    first, second = results
    assert second == jobs.Result("second", jobs.State.OK)
    assert first.state is jobs.State.FAILED
    assert "died (ranks [0])" in first.text and "hung" not in first.text
    assert first.text.endswith("(alone it went well)")


def test_an_error_of_the_start_is_no_hang() -> None:
    def begin(rank: int) -> None:
        raise LookupError("no such GPU")

    tasks = {"first": lambda: None, "second": lambda: None}
    results, _ = jobs.run_in_way(Way("one", 1, {}), tasks, begin, jobs.Budget(100), LIMITS)
    assert [result.state for result in results] == [jobs.State.FAILED, jobs.State.NOT_RUN, jobs.State.NOT_RUN]
    text = results[0].text
    assert "raised an error outside of its tasks (ranks [0])" in text and "no such GPU" in text and "hung" not in text


def test_a_budget_is_given_out_until_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = jobs.Budget(60)
    assert (budget.for_job(50), budget.for_job(70)) == (50, 60)
    now = 140.0
    assert (budget.left(), budget.for_job(50)) == (20, 20)
    now = 155.0
    assert (budget.for_job(50), budget.for_job(4)) == (0, 4)
    now = 161.0
    assert (budget.left(), budget.for_job(4)) == (0, 0)


def test_what_became_of_a_killed_rank_is_judged() -> None:
    died = Outcome(1, None, None, "", -signal.SIGKILL, "")
    survivor = Outcome(0, "rank 1 is lost", None, "", 0, "")
    assert endings.trouble_of_losing([survivor, died]) == ""
    wrong = {
        "did not come to it": [survivor, Outcome(1, "", None, "", 0, "")],
        "was not told": [Outcome(0, "", None, "", 0, ""), died],
        "but not of rank 1": [Outcome(0, "rank 2 is lost", None, "", 0, ""), died],
        "did not end well": [Outcome(0, None, ValueError(), "", 0, ""), died],
    }
    for text, outcomes in wrong.items():
        assert text in endings.trouble_of_losing(outcomes)


# --- overlap ----------------------------------------------------------------------------------------------------------


def test_spans_are_joined_and_compared() -> None:
    assert overlap.joined([(5, 6), (1, 3), (2, 4)]) == [(1, 4), (5, 6)]
    assert overlap.shared([(0, 10), (20, 30)], [(5, 6), (8, 22), (29, 40)]) == 1 + 2 + 2 + 1


def test_names_of_spans_are_no_work() -> None:
    def event(kind: str, stream: int, begin: float, end: float) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "ts": begin, "dur": end - begin, "args": {"stream": stream}}

    computing = [event("kernel", 7, 0, 3000), event("kernel", 7, 4000, 6000)]
    exchange = [event("gpu_memcpy", 20, 2000, 5000)]
    named = [event("gpu_user_annotation", 20, 0, 9000), event("gpu_user_annotation", 7, 0, 9000)]
    other: list[dict[str, Any]] = [{"ph": "M", "name": "process"}]
    [line] = {overlap.summary(computing + exchange + more) for more in ([], named, other)}
    assert "at work for 1.00 ms a step, 67% of that beside computing" in line.text and line.reached is None
    assert "1 stream(s)" in overlap.summary(computing).text


# --- building ---------------------------------------------------------------------------------------------------------

TOOLS = building.Tools("/bin/cmake", "/bin/ninja", "/bin/make", "/bin/g++")


def never(command: list[str], seconds: float) -> str:
    raise AssertionError(f"{command} was run")


def test_what_is_there_or_cannot_be_built_is_not_built(tmp_path: Path) -> None:
    library = tmp_path / building.NAME
    none = building.Tools("", "", "", "")
    problem = building.make_ready(9, library=library, folder=tmp_path, may_build=False, tools=TOOLS, run=never)
    assert "--no-build" in problem
    problem = building.make_ready(9, library=library, folder=tmp_path, tools=none, run=never)
    assert all(name in problem for name in ("cmake", "ninja or make", "C++ compiler"))
    library.touch()
    assert building.make_ready(9, library=library, folder=tmp_path, tools=none, run=never) == ""


@pytest.mark.parametrize("tools", [TOOLS, TOOLS._replace(ninja="")])
def test_what_is_built_is_put_in_place(tmp_path: Path, tools: building.Tools) -> None:
    library, ran = tmp_path / building.NAME, []

    def run(command: list[str], seconds: float) -> str:
        ran.append(command)
        if "--build" in command:
            Path(command[2], building.NAME).write_text("built")
        return ""

    assert building.make_ready(9, library=library, folder=tmp_path, tools=tools, run=run) == ""
    assert library.read_text() == "built"
    configure, build = ran
    assert ("Ninja" if tools.ninja else "Unix Makefiles") in configure and "spark_estimator_engine" in build
    library.unlink()
    problem = building.make_ready(9, library=library, folder=tmp_path, tools=tools, run=lambda *_: "no C++20 there")
    assert problem == "the engine could not be built: no C++20 there" and not library.exists()


def test_a_command_that_fails_or_hangs_is_told() -> None:
    assert building.run_command([sys.executable, "-c", "pass"], 60) == ""
    failed = building.run_command([sys.executable, "-c", "print('why'); raise SystemExit(3)"], 60)
    assert "exit code 3\nwhy" in failed
    assert "had not ended after" in building.run_command(["sh", "-c", "sleep 1000 & wait"], 1)
