"""Profiles of some steps of some ranks: what is in the traces, where they arrive, and the line where there is none."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_estimator import HorovodRunner, PreflightError, TorchEstimator, profile, run
from spark_estimator.observe import spans, step_times
from spark_estimator.observe.profiling import FOLDER_VARIABLE, PROFILE_VARIABLE, ProfileRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
import torch
import spark_estimator.torch as hvd
hvd.init()
model = torch.nn.Linear(10, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(5):
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
"""


def train(steps: int, steps_here: tuple[int, int] | None = None) -> None:
    import contextlib

    import torch

    import spark_estimator
    import spark_estimator.torch as hvd

    hvd.init()
    model = torch.nn.Linear(10, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    with contextlib.nullcontext() if steps_here is None else spark_estimator.profile(1, steps_here):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 10)).sum().backward()
            optimizer.step()


def read_trace(path: Path) -> tuple[Counter[str], dict[str, Any]]:
    """Return how often each event is in a trace, and all of it."""
    with gzip.open(path) as file:
        trace = json.load(file)
    return Counter(event["name"] for event in trace["traceEvents"]), trace


def test_the_trace_of_each_rank_has_its_steps_and_spans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with profile(rank=[0, 1], steps=(3, 5), folder=tmp_path / "new"):
        HorovodRunner(np=-2).run(train, 7)
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == [f"profile-rank{rank}-steps3-5.json.gz" for rank in range(2)]
    for rank, file in enumerate(files):
        counts, trace = read_trace(file)
        assert counts[spans.EXCHANGE] == counts["Optimizer.step#SGD.step"] == 3
        assert counts[spans.WAIT] >= 3 and counts["aten::linear"] == 3
        assert trace["spark_estimator"].startswith(f"rank {rank} on ")
        assert f"wrote {file}" in capsys.readouterr().err or rank == 1


def test_steps_that_never_come_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with profile(rank=1, steps=(10, 13), folder=tmp_path):
        HorovodRunner(np=-2).run(train, 7)
    output = "".join(capfd.readouterr())
    assert "rank 1: the job ended after step 7, before the profiled steps 10 to 13" in output
    assert "rank 0: the job ended" not in output
    assert f"no trace of steps 10 to 13 has arrived in {tmp_path}" in output
    with profile(rank=1, steps=(6, 10), folder=tmp_path):
        HorovodRunner(np=-2).run(train, 7)
    assert "ended after step 7, within the profiled steps 6 to 10" in "".join(capfd.readouterr())
    (file,) = tmp_path.iterdir()
    assert read_trace(file)[0][spans.EXCHANGE] == 2


def test_a_rank_that_does_not_exist_is_refused_before_the_job(tmp_path: Path) -> None:
    with profile(rank=[0, 2], folder=tmp_path), pytest.raises(PreflightError, match="rank 2 can't be profiled: the jo"):
        HorovodRunner(np=-2).run(train, 1)


def test_a_loop_in_a_rank_profiles_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    HorovodRunner(np=-2).run(train, 4, steps_here=(2, 3))
    (file,) = tmp_path.iterdir()
    assert file.name == "profile-rank1-steps2-3.json.gz"
    assert read_trace(file)[0][spans.EXCHANGE] == 2


def step_alone() -> None:
    """Make some steps, with a hook of the user's that PyTorch calls after that of the profile."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: None)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.ones(2, 10)).sum().backward()
        optimizer.step()


def test_a_rank_may_have_other_hooks_and_profiles(tmp_path: Path) -> None:
    def check() -> None:
        import spark_estimator.torch as hvd

        hvd.init()
        with profile(0, (5, 6)):
            step_alone()

    with profile(0, (2, 3), folder=tmp_path):
        HorovodRunner(np=-1).run(check)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["profile-rank0-steps2-3.json.gz", "profile-rank0-steps5-6.json.gz"]


def test_a_profile_gives_way_to_another_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def check() -> bool:
        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        with torch.profiler.profile() as mine:
            step_alone()
        return "Optimizer.step#SGD.step" in {event.key for event in mine.key_averages()}

    with profile(0, (2, 3), folder=tmp_path):
        assert HorovodRunner(np=-1).run(check)
    assert not list(tmp_path.iterdir())
    assert "rank 0: steps 2 to 3 are not profiled, as another profiler runs" in capfd.readouterr().out


def test_profiles_of_threads_end_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, "3:4")
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    first, second = profile(0, (2, 3), folder=tmp_path), profile(1, (4, 5), folder=tmp_path)
    with contextlib.ExitStack() as ends_first:
        ends_first.enter_context(first)
        second.__enter__()
    assert os.environ[PROFILE_VARIABLE] == "1:4-5"
    second.__exit__(None, None, None)
    assert os.environ[PROFILE_VARIABLE] == "3:4" and FOLDER_VARIABLE not in os.environ


def test_a_recovery_is_in_the_trace(tmp_path: Path) -> None:
    def survive() -> None:
        import os
        import signal

        import torch

        import spark_estimator.torch as hvd

        hvd.init()
        model = torch.nn.Linear(10, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())

        @hvd.elastic.run
        def loop(state: Any) -> None:
            while state.step < 8:
                if state.step == 3 and hvd.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.zero_grad()
                model(torch.ones(2, 10)).sum().backward()
                optimizer.step()
                state.step += 1
                state.commit()

        loop(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))

    with profile(steps=(3, 6), folder=tmp_path):
        run(survive, num_proc=2, min_num_proc=1)
    (file,) = tmp_path.iterdir()
    assert read_trace(file)[0][spans.RECOVERY] >= 2, "it restores a commit, and begins a round"


def test_the_ranks_of_this_host_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    def list_them() -> None:
        import os
        import subprocess
        import sys

        from spark_estimator.collectives import context, ops

        context.init()
        if context.rank() == 0:
            with subprocess.Popen(["sleep", "1000"]) as child:  # which has the rank's environment, too
                subprocess.run([sys.executable, "-m", "spark_estimator", "ranks"], check=True)
                child.kill()
        print("pid", context.rank(), os.getpid())
        ops.barrier()

    HorovodRunner(np=-2).run(list_them)
    output = "".join(capfd.readouterr())
    pids = dict(re.findall(r"pid (\d) (\d+)", output))
    for rank in ("0", "1"):
        assert re.search(rf"  {rank} +{pids[rank]}  ", output), output
    assert "py-spy dump --pid" in output


def test_horovodrun_profiles(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ["-np", "2", "--profile", "1:2-3", "--profile-folder", "traces"]
    (tmp_path / "traces").mkdir()
    command = [sys.executable, "-m", "spark_estimator", "run", *flags, "python", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_trace(tmp_path / "traces" / "profile-rank1-steps2-3.json.gz")[0][spans.EXCHANGE] == 2
    command[command.index("1:2-3")] = "7:2-3"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "rank 7 can't be profiled: the job has 2 ranks" in done.stderr


def test_an_estimator_puts_traces_into_its_run(spark: SparkSession, tmp_path: Path) -> None:
    import torch

    frame = spark.createDataFrame([(float(number), 2.0 * number) for number in range(64)], "x double, y double")
    model = torch.nn.Linear(1, 1)
    estimator = TorchEstimator(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["x"],
        label_cols=["y"],
        num_proc=2,
        batch_size=4,
        store=str(tmp_path),
        run_id="profiled",
        profile=profile(rank=1, steps=(2, 4)),
        verbose=0,
    )
    estimator.fit(frame)
    counts, _ = read_trace(tmp_path / "runs" / "profiled" / "profile-rank1-steps2-4.json.gz")
    assert counts[spans.EXCHANGE] == counts[spans.INPUT] == 3


def test_without_a_recorder_a_span_is_nothing() -> None:
    assert spans.span("a") is spans.span("b")
    assert list(step_times.time_input([1, None, 2])) == [1, None, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"rank": -1}, ValueError, "counted from 0"),
        ({"rank": "0"}, TypeError, "takes whole numbers"),
        ({"rank": []}, TypeError, "takes whole numbers"),
        ({"steps": (1, 3)}, ValueError, "must be 2 or later"),
        ({"steps": (5, 3)}, ValueError, "first and the last"),
        ({"steps": (5, 6, 7)}, TypeError, "takes whole numbers"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        profile(**arguments)


def test_the_request_in_words() -> None:
    assert str(ProfileRequest.parse(" 0,3:10-13 ")) == "0,3:10-13"
    assert ProfileRequest.parse("1:5") == ProfileRequest((1,), 5, 5)
    with pytest.raises(ValueError, match="must be RANKS:FIRST-LAST"):
        ProfileRequest.parse("10-13")
    with pytest.raises(TypeError, match=r"profile must be spark_estimator\.profile"):
        TorchEstimator(profile="0:10-13")
