"""`HorovodRunner` as notebooks use it: its arguments, and jobs in the session that is there."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import warnings
from typing import Any

import pytest

from spark_estimator import HorovodRunner
from spark_estimator.errors import JobCancelledError, NotEnoughSlotsError, PicklingError, WorkerFailedError
from spark_estimator.observe.driver_log import log_to_driver

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


class TestArguments:
    def test_np_is_given_by_name(self) -> None:
        with pytest.raises(TypeError):
            HorovodRunner(2)  # type: ignore[misc]
        with pytest.raises(TypeError):
            HorovodRunner()  # type: ignore[call-arg]

    @pytest.mark.parametrize("np", [True, 2.0, "2", None])
    def test_np_is_a_whole_number(self, np: Any) -> None:
        with pytest.raises(TypeError, match="np is the number of ranks"):
            HorovodRunner(np=np)

    def test_np_is_no_telephone_number(self) -> None:
        with pytest.raises(ValueError, match="np=5551234"):
            HorovodRunner(np=5551234)

    def test_verbosity_is_one_of_two(self) -> None:
        with pytest.raises(ValueError, match=r"log_callback_only.*'loud'"):
            HorovodRunner(np=2, driver_log_verbosity="loud")

    def test_attributes(self) -> None:
        assert HorovodRunner(np=-3).num_processor == -3

    @pytest.mark.parametrize("np", [-1, 2])
    def test_main_is_a_function_that_does_something_when_it_is_called(self, np: int) -> None:
        async def later() -> None: ...

        def one_by_one(_: Any = None) -> Any:
            yield 1

        refused = {
            "train.py": "the function to run on every rank",
            later: r"later\(\) is defined with `async def`: .*asyncio\.run\(later\(\)\)",
            functools.partial(one_by_one, 1): r"one_by_one\(\) is a generator function .*Give a function that returns",
        }
        for main, text in refused.items():
            with pytest.raises(TypeError, match=text):
                HorovodRunner(np=np).run(main)  # type: ignore[arg-type]


@pytest.mark.parametrize("np", [-2, 2])
class TestJobs:
    @pytest.fixture(autouse=True)
    def session(self, np: int, request: pytest.FixtureRequest) -> None:
        if np > 0:
            pytest.importorskip("pyspark")
            request.getfixturevalue("spark")

    def test_keyword_arguments_reach_main(self, np: int) -> None:
        def main(a: int, b: list[int]) -> Any:
            return a, b, rank()

        assert HorovodRunner(np=np).run(main, a=1, b=[2]) == (1, [2], 0)

    def test_nothing_is_started_when_something_cannot_travel(self, np: int) -> None:
        with pytest.raises(PicklingError, match=r"named_main\(\) is given the argument 'lock'"):
            HorovodRunner(np=np).run(named_main, lock=threading.Lock())

    def test_messages_always_reach_the_driver(self, np: int, capsys: pytest.CaptureFixture[str]) -> None:
        def main() -> None:
            log_to_driver(f"hello from {rank()}\x1b[31m")
            print("a line")

        HorovodRunner(np=np).run(main)
        output = capsys.readouterr().out
        for number in (0, 1):
            assert f"[{number}] hello from {number}" in output
        # Lines of local processes are always shown, as on Databricks; those of executors are not asked for here.
        assert ("<stdout>:a line" in output) == (np < 0)
        assert "\x1b" not in output and "\\x1b[31m" in output, "what a rank says cannot steer the terminal"

    def test_all_lines_reach_the_driver_when_asked_for(self, np: int, capsys: pytest.CaptureFixture[str]) -> None:
        def main() -> None:
            for number in range(20_000):
                print(f"line {number}")
            print("not so \x1b[31mgood", file=sys.stderr)

        HorovodRunner(np=np, driver_log_verbosity="all").run(main)
        output, errors = capsys.readouterr()
        for number in (0, 1):
            own = [line for line in output.splitlines() if line.startswith(f"[{number}]<stdout>:")]
            assert own == [f"[{number}]<stdout>:line {n}" for n in range(20_000)]
            assert f"[{number}]<stderr>:not so \\x1b[31mgood\n" in errors

    def test_the_traceback_is_the_cause(self, np: int) -> None:
        def main() -> None:
            if rank() == 1:
                raise ValueError("boom")
            threading.Event().wait()

        with pytest.raises(WorkerFailedError, match=r"rank 1 .* raised ValueError: boom") as caught:
            HorovodRunner(np=np).run(main)
        assert caught.value.rank == 1
        assert 'raise ValueError("boom")' in str(caught.value.__cause__)


def test_a_supervisor_that_dies_takes_its_rank_along_and_is_named(spark: Any) -> None:
    def main() -> None:
        if rank() == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()

    with pytest.raises(WorkerFailedError, match=r"rank 1 \(host .* is out of contact") as caught:
        HorovodRunner(np=2).run(main)
    assert caught.value.rank == 1
    assert HorovodRunner(np=2).run(lambda: 1) == 1


def test_a_job_that_is_cancelled_from_outside_says_so(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        threading.Event().wait()

    timer = threading.Timer(4, spark.sparkContext.cancelAllJobs)
    timer.start()
    with pytest.raises(JobCancelledError, match=r"main\(\) was cancelled in Spark, .* cancellation of all jobs\."):
        HorovodRunner(np=2, max_restarts=1).run(main)
    assert "attempt" not in capsys.readouterr().err


def test_an_interruption_is_told_in_a_sentence_wherever_it_comes(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    import spark_estimator.launch.spark.barrier_job  # noqa: F401  # an interruption of the import is Python's own

    def wait() -> None:
        threading.Event().wait()

    for seconds in (0.05, 0.15):  # the driver asks Java about the session
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        runner = HorovodRunner(np=2)
        try:
            with pytest.raises(KeyboardInterrupt, match=r"(HorovodRunner\(np=2\)|wait\(\)) was interrupted"):
                # The last before the call: on a busy machine nothing but that may take so long.
                signal.setitimer(signal.ITIMER_REAL, seconds)
                runner.run(wait)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert "while sending command" not in caplog.text


def named_main(lock: Any) -> None: ...


def test_np_0_means_all_slots_and_warns(spark: Any) -> None:
    with pytest.warns(DeprecationWarning, match="np=0"):
        assert HorovodRunner(np=0).run(lambda: os.environ["HOROVOD_SIZE"]) == "2"


def test_too_many_ranks_are_refused(spark: Any) -> None:
    with pytest.raises(
        NotEnoughSlotsError, match=r'3 ranks need 3 slots .* 2 cores .*\.master\("local\[3\]"\), or use np=2'
    ):
        HorovodRunner(np=3).run(lambda: None)


def test_no_warnings_of_pyspark_s_reach_the_user(spark: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="pyspark")
        HorovodRunner(np=1).run(lambda: None)


def test_jobs_in_two_threads_do_not_meet(spark: Any) -> None:
    values = {}
    threads = [
        threading.Thread(target=lambda n=n: values.update({n: HorovodRunner(np=1).run(lambda: n)})) for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {0: 0, 1: 1}
