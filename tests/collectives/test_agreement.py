"""Ranks agree on process sets: the errors that all of them get, and an exchange that timed out."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from spark_estimator.collectives.agreement import Agreement
from spark_estimator.collectives.engine import Engine
from spark_estimator.errors import HorovodInternalError, MismatchError

SHORT = timedelta(seconds=0.05)


def reach(engines: list[Engine], *statements: dict[str, Any]) -> list[Exception | None]:
    """[rank] what each rank's `Agreement.reach` raises."""

    def outcome(engine: Engine, arguments: dict[str, Any]) -> Exception | None:
        try:
            Agreement(engine).reach(**arguments)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(engines)) as pool:
        return list(pool.map(outcome, engines, statements))


def test_the_same_wish_is_agreed_on(two_engines: list[Engine]) -> None:
    wish = {"wish": {"add": [0]}}
    assert reach(two_engines, wish, wish) == [None, None]


@pytest.mark.parametrize(
    ("first", "second", "kind", "text"),
    [
        (
            {"wish": {"add": [0]}},
            {"wish": {"remove": 3}},
            MismatchError,
            r"rank 0 called add_process_set\(\[0\]\), rank 1 called remove_process_set of the set with id 3",
        ),
        (
            {"wish": {"init": []}, "dynamic": True},
            {"wish": {"init": []}, "dynamic": False},
            MismatchError,
            "HOROVOD_DYNAMIC_PROCESS_SETS=1, rank 1 called .*HOROVOD_DYNAMIC_PROCESS_SETS=0",
        ),
        (
            {"wish": {"add": [0]}},
            {"wish": {"add": [0]}, "problem": "it is full"},
            ValueError,
            "add_process_set on rank 1: it is full",
        ),
        (
            {"wish": {"add": [0]}, "lacking": "no descriptors"},
            {"wish": {"add": [0]}, "lacking": "no descriptors"},
            HorovodInternalError,
            "add_process_set on every rank: no descriptors",
        ),
    ],
)
def test_all_ranks_get_the_same_error(
    two_engines: list[Engine], first: dict[str, Any], second: dict[str, Any], kind: type[Exception], text: str
) -> None:
    errors = reach(two_engines, first, second)
    assert [type(error) for error in errors] == [kind, kind]
    assert str(errors[0]) == str(errors[1])
    with pytest.raises(kind, match=text):
        raise errors[0] or AssertionError


def test_a_call_that_timed_out_continues_when_it_is_repeated(two_engines: list[Engine]) -> None:
    early, late = (Agreement(engine) for engine in two_engines)
    with pytest.raises(TimeoutError):
        early.reach({"add": [0]}, timeout=SHORT)
    with pytest.raises(HorovodInternalError, match=r"add_process_set\(\[1\]\) on rank 0: an earlier call .*\[0\]"):
        early.reach({"add": [1]}, timeout=SHORT)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(late.reach, {"add": [0]})
        early.reach({"add": [0]})
        other.result(60)


def test_a_rank_alone_exchanges_with_itself(single_engine: Engine) -> None:
    assert Agreement(single_engine).exchange({"wish": {"add": [0]}}) == {0: {"wish": {"add": [0]}}}
