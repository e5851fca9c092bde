"""`HorovodRunner` in the active session and without Spark; `run`, which starts ranks on this machine."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner, run
from spark_estimator.errors import (
    JobCancelledError,
    NotEnoughSlotsError,
    PicklingError,
    PreflightError,
    WorkerFailedError,
)
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
        with pytest.raises(TypeError, match="np must be an int, the number of ranks"):
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
            42: "the function to run on every rank",
            later: r"later\(\) is defined with `async def`: .*asyncio\.run\(later\(\)\)",
            functools.partial(one_by_one, 1): r"one_by_one\(\) is a generator function .*Pass a function that returns",
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
        with pytest.raises(PicklingError, match=r"named_main\(\) receives the argument 'lock'"):
            HorovodRunner(np=np).run(named_main, lock=threading.Lock())

    def test_an_interruption_that_a_library_catches_ends_the_job(self, np: int) -> None:
        class Interrupting:
            def __reduce__(self) -> Any:
                if threading.current_thread() is threading.main_thread():
                    with contextlib.suppress(KeyboardInterrupt):
                        signal.raise_signal(signal.SIGINT)
                return str, ()

        def main(_argument: Any) -> None:
            threading.Event().wait()

        with pytest.raises(KeyboardInterrupt, match=r"main\(\) was interrupted; all of its ranks were stopped"):
            HorovodRunner(np=np).run(main, _argument=Interrupting())

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
            rank_lines = [line for line in output.splitlines() if line.startswith(f"[{number}]<stdout>:")]
            assert rank_lines == [f"[{number}]<stdout>:line {n}" for n in range(20_000)]
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
    import spark_estimator.launch.spark.stage_job  # noqa: F401  # an interruption of the import is Python's own

    def wait() -> None:
        threading.Event().wait()

    for seconds in (0.05, 0.15):  # the driver asks Java about the session
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        runner = HorovodRunner(np=2)
        try:
            with pytest.raises(KeyboardInterrupt, match=r"(HorovodRunner\(np=2\)|wait\(\)) was interrupted"):
                # The last before the call: on a busy machine only that may take this long.
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


# --- run ------------------------------------------------------------------------------------------------------------


def test_arguments_have_horovod_s_order_and_defaults() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    names = [
        *("func", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit"),
        *("cooldown_range", "hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
        *("ssh_identity_file", "disable_cache", "output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args"),
        *("network_interface", "network_interfaces", "executable", "np", "min_np", "max_np"),
    ]
    assert list(defaults) == names
    assert [defaults.pop(name) for name in names[1:4]] == [(), None, 1]
    assert defaults.pop("func") is inspect.Parameter.empty and set(defaults.values()) == {None}


def test_all_values_come_back_in_rank_order_and_lines_go_to_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(word: str, *, times: int) -> tuple[int, str | None]:
        print(word * times)
        return rank(), os.environ.get("HOROVOD_START_TIMEOUT")

    with pytest.warns(UserWarning, match=r"ssh_port=22 has no effect: all ranks run on this host\."):
        values = run(
            work, ("ab",), {"times": 2}, 3,
            hosts="localhost:4", start_timeout=40, ssh_port=22, output_filename=str(tmp_path), verbose=2,
        )  # fmt: skip
    assert values == [(number, "40") for number in range(3)]
    printed, stderr = capfd.readouterr()
    for number in range(3):
        assert f"[{number}]<stdout>:abab\n" in printed
        assert (tmp_path / f"rank.{number}" / "stdout").read_text() == "abab\n"
    assert re.search(r"^spark_estimator: 3 ranks on ", stderr)
    with pytest.warns(UserWarning, match="network_interfaces='lo,eth0' has no effect"):
        assert run(rank, network_interfaces=["lo", "eth0"]) == [0]


def test_the_first_failure_is_raised() -> None:
    with pytest.raises(WorkerFailedError, match=r"rank 1 .* raised ZeroDivisionError") as caught:
        run(lambda: 1 // (1 - rank()), num_proc=2)
    assert caught.value.rank == 1
    assert "one or more processes exited with non-zero status" in str(caught.value)  # which people search for


def test_an_elastic_job_goes_on_without_those_that_it_loses() -> None:
    def work() -> int:
        from spark_estimator.collectives import context
        from spark_estimator.collectives.objects import broadcast_object
        from spark_estimator.elastic import ObjectState, rejoin, run_fn

        def loop(_state: Any) -> int:
            if context.size() == 3:
                if context.rank() == 1:
                    os._exit(3)
                broadcast_object(1, name="for ever")
            return 10 * context.size() + context.rank()

        context.init()
        return run_fn(loop, rejoin)(ObjectState(broadcast_object, context.rank))

    assert run(work, num_proc=3, min_num_proc=2) == [20, 21]
    # A script names slots for all three, of which the job has to begin with one.
    script = "echo localhost"
    named = {"host_discovery_script": script, "slots": 5, "cooldown_range": (1, 2)}
    assert run(work, num_proc=2, max_num_proc=3, reset_limit=1, **named) == [20, 21]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"hosts": "no-such-host.invalid:2"}, PreflightError, r"no-such-host.invalid: ssh .*check the name"),
        ({"hosts": "no-such-host.invalid:2", "min_num_proc": 1}, PreflightError, r"no-such-host.invalid: ssh"),
        ({"hosts": "localhost:1", "num_proc": 2}, PreflightError, "offers 1 slots, but 2 ranks"),
        ({"hosts": "localhost:x"}, PreflightError, "must have the form host:slots"),
        ({"hostfile": "hosts.txt"}, PreflightError, r"hosts.txt can't be read: No such file"),
        ({"host_discovery_script": "./d"}, PreflightError, r"script './d' ended with exit status 127; .*not found"),
        ({"host_discovery_script": "x", "hosts": "a"}, PreflightError, "only one of them can be used"),
        ({"min_num_proc": 1, "cooldown_range": 5}, ValueError, "two numbers of seconds, .* got 5"),
        ({"num_proc": 0}, ValueError, "from 1 to .* got 0"),
        ({"num_proc": "2"}, ValueError, "got '2'"),
        (
            {"args": "ab"},
            TypeError,
            r"args must be .* of rank\(\); got 'ab' of type str.*\(value,\)",
        ),
        ({"kwargs": [1]}, TypeError, r"kwargs must be a dict, the keyword arguments of rank\(\); got \[1\]"),
        ({"reset_limit": 3}, ValueError, "reset_limit=3 needs an elastic job"),
        ({"num_proc": 2, "max_num_proc": 1}, ValueError, "num_proc=2 is more than max_num_proc=1"),
        ({"num_proc": 1, "min_num_proc": 2}, ValueError, "min_num_proc=2 is more than num_proc=1"),
        ({"min_num_proc": "1"}, TypeError, "min_num_proc must be an int, the number of ranks; got '1'"),
        ({"max_num_proc": 1.5}, TypeError, "max_num_proc must be an int, the number of ranks; got 1.5"),
        ({"min_num_proc": 1, "reset_limit": "x"}, ValueError, "reset_limit must be an int, 0 or more; got 'x'"),
        ({"hosts": ["a:1"]}, TypeError, "hosts must be a string; got"),
        ({"hosts": ""}, ValueError, "hosts must not be empty"),
        ({"network_interfaces": [1]}, TypeError, r"a string, or a list or set of strings; got \[1\] \(list\)"),
        ({"host_discovery_script": 3}, TypeError, "host_discovery_script must be a string; got 3"),
        ({"output_filename": ""}, ValueError, "output_filename must not be empty"),
        ({"start_timeout": -1}, ValueError, "start_timeout must be a number of seconds above 0; got -1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(rank, **arguments)


def test_deprecated_names_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"np is deprecated: use num_proc=2\."):
        assert run(rank, np=2) == [0, 1]
