"""`spark_estimator.run`, Horovod's way to run a function on this machine."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import run
from spark_estimator.errors import PreflightError, WorkerFailedError

pytestmark = pytest.mark.usefixtures("functions_travel_by_value")


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def test_arguments_have_horovod_s_order_and_defaults() -> None:
    given = {name: parameter.default for name, parameter in inspect.signature(run).parameters.items()}
    names = [
        *("func", "args", "kwargs", "num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit"),
        *("cooldown_range", "hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
        *("ssh_identity_file", "disable_cache", "output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args"),
        *("network_interface", "network_interfaces", "executable", "np", "min_np", "max_np"),
    ]
    assert list(given) == names
    assert [given.pop(name) for name in names[1:4]] == [(), None, 1]
    assert given.pop("func") is inspect.Parameter.empty and set(given.values()) == {None}


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
    printed, said = capfd.readouterr()
    for number in range(3):
        assert f"[{number}]<stdout>:abab\n" in printed
        assert (tmp_path / f"rank.{number}" / "stdout").read_text() == "abab\n"
    assert re.search(r"^spark_estimator: 3 ranks on ", said)
    assert run(rank) == [0]


def test_the_first_failure_is_raised() -> None:
    with pytest.raises(WorkerFailedError, match=r"rank 1 .* raised ZeroDivisionError") as caught:
        run(lambda: 1 // (1 - rank()), num_proc=2)
    assert caught.value.rank == 1


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
        ({"hosts": "localhost:x"}, PreflightError, "not of the form host:slots"),
        ({"hostfile": "hosts.txt"}, PreflightError, r"hosts.txt cannot be read: No such file"),
        ({"host_discovery_script": "./d"}, PreflightError, r"script './d' ended with exit status 127; .*not found"),
        ({"host_discovery_script": "x", "hosts": "a"}, PreflightError, "give one of them"),
        ({"min_num_proc": 1, "cooldown_range": 5}, ValueError, "two numbers of seconds, .* not 5"),
        ({"num_proc": 0}, ValueError, "from 1 to .* it was 0"),
        ({"num_proc": "2"}, ValueError, "it was '2'"),
        ({"start_timeout": -1}, ValueError, "HOROVOD_START_TIMEOUT='-1'"),
        (
            {"args": "ab"},
            TypeError,
            r"args are .* of rank\(\), in a tuple or list; they were 'ab' of type str.*\(value,\)",
        ),
        ({"kwargs": [1]}, TypeError, r"kwargs are the arguments of rank\(\) by name, in a dict; they were \[1\]"),
        ({"reset_limit": 3}, ValueError, "reset_limit=3 is for elastic jobs"),
        ({"num_proc": 2, "max_num_proc": 1}, ValueError, "max_num_proc=1 is less than the 2 ranks"),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(rank, **arguments)


def test_deprecated_names_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"np is deprecated: say num_proc=2\."):
        assert run(rank, np=2) == [0, 1]
