"""Elastic jobs with real processes: ranks that die, freeze, raise and join, at every moment of a round."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from spark_estimator.elastic import rounds
from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import WorkerFailedError
from spark_estimator.launch.elastic import job
from spark_estimator.launch.elastic.job_entry import run_elastic_local
from spark_estimator.launch.job.options import JobOptions
from tests.launch import clusters

STEPS = 12


@pytest.fixture(scope="module", autouse=True)
def functions_travel_by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def marker() -> Iterator[str]:
    """A mark in the environment of everything that the test's jobs start; all of it has to have ended."""
    text = uuid.uuid4().hex
    yield text
    clusters.wait_until_gone(text, 10)


@dataclass
class Fault:
    """What one process does to itself, once, at one moment.

    Attributes:
        how: "kill", "stop" or "raise".
        rank: which rank does it.
        moment: "start" (before the first round), "step", "reset" (in a callback, with the new round connected), "init"
            (notified of the round, and not yet connected), "sync" (half way).
        size: of how many ranks the round has.
        step: at which step, for "step".
        always: not once, but in each process that gets there.
    """

    how: str
    rank: int
    moment: str = "step"
    size: int = 3
    step: int = 5
    always: bool = False

    def strike(self, folder: str, moment: str, step: int = -1) -> None:
        from spark_estimator.collectives import context, rendezvous

        received = rendezvous.find_current()
        assert received is not None
        here = context.rank() if context.is_initialized() else received.rank
        fits = (here, len(received.peers), moment) == (self.rank, self.size, self.moment)
        if not fits or (moment == "step" and step != self.step):
            return
        try:
            if not self.always:
                Path(folder, repr(self)).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.how == "raise":
            raise ValueError("a bug of the user's")
        os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)


def train(faults: list[Fault], folder: str, pause: float = 0.0, wait_for_size: int = 0) -> dict[str, Any]:
    """Adds up, in each step, the mean over the ranks of a number that depends on rank and step."""
    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.collectives.objects import broadcast_object
    from spark_estimator.elastic import ObjectState, rejoin, run_fn

    def strike(moment: str, step: int = -1) -> None:
        for fault in faults:
            fault.strike(folder, moment, step)

    strike("start")
    joined = context.init

    def init() -> None:
        strike("init")
        joined()

    context.init = init  # type: ignore[assignment]
    joined()

    class State(ObjectState):
        def sync(self) -> None:
            strike("sync")
            super().sync()

    def loop(state: Any) -> list[int]:
        while state.step < STEPS or (
            wait_for_size and [present for _, present in state.history[-3:]] != [wait_for_size] * 3
        ):
            strike("step", state.step)
            value = numpy.array([float(state.step * 7 + context.rank())])
            state.total += float(arrays.allreduce(value, name="sum")[0])
            state.history.append((state.step, context.size()))
            state.step += 1
            if pause:
                time.sleep(pause)
            state.commit()
            assert state.step < 10_000
        pids: list[int] = arrays.allgather(numpy.array([os.getpid()]), name="pids").tolist()
        return pids

    state = State(broadcast_object, context.rank, step=0, total=0.0, history=[])
    resets: list[tuple[int, int]] = []
    state.register_reset_callbacks([lambda: strike("reset"), lambda: resets.append((context.rank(), context.size()))])
    pids = run_fn(loop, rejoin)(state)
    Path(folder, f"rank{context.rank()}").write_text(repr((state.total, state.history)))
    return {"total": state.total, "history": state.history, "pids": pids, "resets": resets, "size": context.size()}


def mean_of(step: int, size: int) -> float:
    return step * 7 + (size - 1) / 2


def run(
    folder: Path,
    marker: str,
    faults: list[Fault],
    *,
    size: int = 3,
    min_size: int = 2,
    more: Any = (),
    environment: Any = None,
    **terms: Any,
) -> dict[str, Any]:
    results: list[dict[str, Any]] = run_elastic_local(
        train,
        Terms(size, min_size, **terms),
        JobOptions(args=(faults, str(folder), *more), environment={clusters.MARKER: marker, **(environment or {})}),
    )
    result = results[0]
    # Each step counted once, with the ranks that there were; and all ranks have the same result.
    assert [step for step, _ in result["history"]] == list(range(len(result["history"])))
    expected = sum(mean_of(step, present) for step, present in result["history"])
    assert result["total"] == pytest.approx(expected, abs=1e-9)
    contents = {path.read_text() for path in folder.glob("rank*")}
    assert contents == {repr((result["total"], result["history"]))}
    return result


@pytest.mark.parametrize("how", ["kill", "raise"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_two_of_three_go_on(how: str, rank: int, tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault(how, rank)])
    assert result["size"] == 2
    assert result["history"] == [(step, 3 if step < 5 else 2) for step in range(STEPS)]
    assert result["resets"] == [(0, 2)]


def test_survivors_keep_their_processes_and_their_order(
    tmp_path: Path, marker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path, marker, [Fault("kill", 0)])
    log = capfd.readouterr().err
    assert f"round 2 starts with 2 ranks, pids {result['pids'][0]}, {result['pids'][1]}" in log
    assert "lost rank 0 (host " in log and "signal 9 (SIGKILL)" in log


def test_a_frozen_rank_is_found_by_its_silence_and_killed(
    tmp_path: Path, marker: str, capfd: pytest.CaptureFixture[str]
) -> None:
    started = time.monotonic()
    result = run(tmp_path, marker, [Fault("stop", 1)])
    assert result["size"] == 2 and time.monotonic() - started < 30
    assert "was stopped because the other ranks lost contact with it" in capfd.readouterr().err


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_is_lost_before_the_first_round_has_begun(rank: int, tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault("kill", rank, "start")])
    assert result["history"] == [(step, 2) for step in range(STEPS)] and result["resets"] == []


@pytest.mark.slow
def test_a_rank_freezes_on_its_way_into_a_round(tmp_path: Path, marker: str, capfd: pytest.CaptureFixture[str]) -> None:
    faults = [Fault("kill", 3, size=4), Fault("stop", 0, "init")]
    started = time.monotonic()
    result = run(tmp_path, marker, faults, size=4, environment={"HOROVOD_START_TIMEOUT": "3"})
    assert result["size"] == 2 and time.monotonic() - started < 20
    log = capfd.readouterr().err
    assert "did not connect within 3 seconds" in log
    assert "was stopped because the other ranks lost contact with it" in log


@pytest.mark.parametrize("moment", ["init", "reset", "sync"])
@pytest.mark.parametrize("second", [0, 1, 2])
def test_a_second_rank_is_lost_while_the_job_recovers(moment: str, second: int, tmp_path: Path, marker: str) -> None:
    started = time.monotonic()
    result = run(tmp_path, marker, [Fault("kill", 3, size=4), Fault("kill", second, moment)], size=4)
    assert result["size"] == 2
    assert result["history"] == [(step, 4 if step < 5 else 2) for step in range(STEPS)]
    assert time.monotonic() - started < 20, "nobody waits for one that is dead"


def test_two_at_once(tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault("kill", 1, size=4), Fault("kill", 2, size=4)], size=4)
    assert result["size"] == 2


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_killed_whenever_no_number_is_wrong_and_nothing_is_left(
    seed: int, tmp_path: Path, marker: str
) -> None:
    """One to three processes of four are killed from outside, at random moments."""
    chance = random.Random(seed)
    kills, replace, over = chance.choice([1, 2, 3]), chance.random() < 0.5, threading.Event()

    def kill() -> None:
        delay = chance.uniform(0.2, 1.2)
        for _ in range(kills):
            if over.wait(delay):
                return
            for pid in chance.sample(list(clusters.processes_with(marker)) or [0], 1):
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
            delay = chance.choice([0.0, 0.002, 0.01, 0.05, 0.3])

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(tmp_path, marker, [], size=4, min_size=1, replace=replace, more=(0.05,))
    finally:
        over.set()
        killer.join()


def test_down_to_one(tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault("kill", 0), Fault("kill", 0, size=2, step=8)], min_size=1)
    assert result["history"][-1] == (STEPS - 1, 1) and result["resets"] == [(1, 2), (0, 1)]


def test_a_new_process_comes_at_the_next_commit(tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault("kill", 1)], replace=True, more=(0.02, 3))
    sizes = [present for _, present in result["history"]]
    assert result["size"] == 3
    assert [size for size, _ in itertools.groupby(sizes)] == [3, 2, 3]
    assert result["resets"] == [(0, 2), (0, 3)], "rank 0 is a survivor"


def test_too_few_without_the_new_one_wait_for_it(tmp_path: Path, marker: str) -> None:
    result = run(tmp_path, marker, [Fault("kill", 0)], min_size=3, replace=True)
    assert result["history"] == [(step, 3) for step in range(STEPS)]
    assert result["resets"] == [(0, 3)]


def test_too_few_survivors_end_the_job_and_are_told(tmp_path: Path, marker: str) -> None:
    faults = [Fault("kill", 1), Fault("raise", 0, size=2, step=8)]
    with pytest.raises(WorkerFailedError) as caught:
        run(tmp_path, marker, faults)
    text = str(caught.value)
    assert "1 rank is left, and at least 2 are needed" in text
    assert "rank 1 (host " in text and "was killed by signal 9 (SIGKILL)" in text
    assert "rank 0 (host " in text and "raised ValueError: a bug of the user's" in text
    assert (caught.value.rank, caught.value.exitcode) == (1, -9)


@pytest.mark.slow
def test_whoever_comes_dies_at_the_same_step(tmp_path: Path, marker: str) -> None:
    faults = [Fault("kill", 0, always=True)]
    with pytest.raises(WorkerFailedError, match=r"10 rounds in a row .* without a commit"):
        run(tmp_path, marker, faults, min_size=3, replace=True)


def test_the_limit_of_resets_ends_the_job(tmp_path: Path, marker: str) -> None:
    with pytest.raises(WorkerFailedError, match="it reached reset_limit=0"):
        run(tmp_path, marker, [Fault("kill", 1)], reset_limit=0)


def test_who_does_not_come_in_time_is_named(tmp_path: Path, marker: str, capfd: pytest.CaptureFixture[str]) -> None:
    def stuck(folder: str) -> int:
        from spark_estimator.collectives import context
        from spark_estimator.collectives.objects import broadcast_object
        from spark_estimator.elastic import ObjectState, rejoin, run_fn
        from spark_estimator.errors import PeerLostError

        def loop(_state: Any) -> int:
            if context.size() == 2:
                return context.size()
            if context.rank() == 1:
                time.sleep(1000)
            raise PeerLostError("as if one were lost")

        context.init()
        return run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank))

    terms = Terms(3, 2, timeout=timedelta(seconds=2))
    assert run_elastic_local(
        stuck, terms, JobOptions(args=(str(tmp_path),), environment={clusters.MARKER: marker})
    ) == [2, 2]
    assert "because it didn't join round 2 within 2 seconds" in capfd.readouterr().err


def test_a_rank_that_does_not_notice_a_loss_is_named(
    marker: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def validate_alone() -> int:
        from spark_estimator.collectives import context

        context.init()
        if context.rank() == 1:
            os._exit(3)
        time.sleep(3)  # without a collective
        return os.getpid()

    for module in (rounds, job):
        monkeypatch.setattr(module, "LATE", timedelta(milliseconds=200))
    [pid] = run_elastic_local(validate_alone, Terms(2, 1), JobOptions(environment={clusters.MARKER: marker}))
    printed = capfd.readouterr().err
    assert (
        re.search(rf"round 2 waits for rank 0 \(host [^ ]+, pid {pid}\)", printed)
        and printed.count("round 2 waits") == 1
    )
    assert "No other rank waits for it" in printed, printed


def test_no_secret_is_in_the_environment_or_the_arguments_of_a_round(marker: str) -> None:
    def look() -> list[Any]:
        from spark_estimator.collectives import context, rendezvous
        from spark_estimator.collectives.objects import broadcast_object
        from spark_estimator.elastic import ObjectState, rejoin, run_fn

        keys: list[str] = []

        def loop(_state: Any) -> None:
            received = rendezvous.find_current()
            assert received is not None
            keys.append(received.key.hex())
            if context.size() == 3:
                if context.rank() == 2:
                    os._exit(3)
                broadcast_object(1, name="for ever")

        context.init()
        run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank))
        shown = [Path(f"/proc/self/{name}").read_bytes() for name in ("environ", "cmdline")]
        return [keys, *shown, subprocess.check_output(["env"])]  # the last: of a program that the rank starts

    results = run_elastic_local(look, Terms(3, 2), JobOptions(environment={clusters.MARKER: marker}))
    (first, second), *shown = results[0]
    assert first != second, "each round has a key of its own"
    assert not [key for key in (first, second) if key.encode() in b"".join(shown)]


def test_without_elastic_terms_the_first_failure_ends_the_job(tmp_path: Path, marker: str) -> None:
    from spark_estimator.launch.local import run_local

    with pytest.raises(WorkerFailedError, match=r"rank 1 .*SIGKILL"):
        run_local(train, 3, JobOptions(args=([Fault("kill", 1)], str(tmp_path)), environment={clusters.MARKER: marker}))


def test_an_interrupted_launcher_leaves_nothing(marker: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time\nfrom spark_estimator.collectives import context\ncontext.init()\n"
        "print('begun', flush=True)\ntime.sleep(1000)\n"
    )
    command = [
        sys.executable,
        "-m",
        "spark_estimator.launch.cli.main",
        "-np",
        "2",
        "--min-np",
        "1",
        "python",
        str(script),
    ]
    for number in (signal.SIGINT, signal.SIGKILL):
        launcher = subprocess.Popen(
            command, env=clusters.environment(**{clusters.MARKER: marker}), stdout=subprocess.PIPE, text=True
        )
        assert launcher.stdout is not None
        for _ in range(2):
            assert "begun" in launcher.stdout.readline()
        killer = threading.Timer(30, launcher.kill)
        killer.start()
        launcher.send_signal(number)
        assert launcher.wait() == (128 + signal.SIGINT if number == signal.SIGINT else -number)
        killer.cancel()
        launcher.stdout.close()
        clusters.wait_until_gone(marker, 10)
