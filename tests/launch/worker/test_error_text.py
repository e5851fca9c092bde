"""The text on an exception of a rank: members of groups, causes, and the line where there is no message."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_estimator.errors import DataError, PeerLostError, ShutDownError
from spark_estimator.launch.worker import error_text

GROUP: Any = getattr(builtins, "ExceptionGroup", None)
needs_groups = pytest.mark.skipif(GROUP is None, reason="Python 3.10 has no exception groups")


def raised(function: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        function()
    return caught.value


def fail(error: BaseException, cause: BaseException | None = None) -> BaseException:
    def work() -> None:
        raise error from cause

    return raised(work)


def test_an_error_with_a_message_is_one_line() -> None:
    assert error_text.describe_error(fail(KeyError("x"))) == "KeyError: 'x'"
    assert error_text.describe_error(fail(DataError("column 'x' is empty"))) == (
        "spark_estimator.errors.DataError: column 'x' is empty"
    )


def test_the_line_of_an_error_without_a_message() -> None:
    def work() -> None:
        assert 1 > 2

    error = raised(work)
    error.args = ()  # pytest writes a message for its own files
    kind, place, source = error_text.describe_error(error).split("\n")
    assert kind == "AssertionError" and re.fullmatch(rf'  File "{re.escape(__file__)}", line \d+, in work', place)
    assert source == "    assert 1 > 2"


def test_what_an_error_was_raised_from() -> None:
    inner = fail(OSError("the store is closed"), fail(TimeoutError("30 s")))
    assert error_text.describe_error(fail(RuntimeError("no batch"), inner)) == (
        "RuntimeError: no batch\n  from OSError: the store is closed\n  from TimeoutError: 30 s"
    )


@needs_groups
def test_the_members_of_a_group() -> None:
    nested = GROUP("inner", [KeyError("x")])
    error = fail(GROUP("loading", [ValueError("a\nb"), nested]))
    assert error_text.describe_error(error) == (
        "ExceptionGroup: loading (2 sub-exceptions): ValueError: a; "
        "ExceptionGroup: inner (1 sub-exception): KeyError: 'x'"
    )
    caused = fail(GROUP("loading", [fail(ValueError("outer"), KeyError("k"))]))
    assert error_text.describe_error(caused).endswith(": ValueError: outer (from KeyError: 'k')")
    many = fail(GROUP("loading", [ValueError(str(number)) for number in range(20)]))
    assert error_text.describe_error(many).endswith("; ValueError: 7; 12 more")


@needs_groups
def test_a_group_is_secondary_if_all_of_its_members_are() -> None:
    lost, error = PeerLostError("rank 1 is lost"), ValueError("boom")
    assert error_text.is_secondary(GROUP("x", [lost, GROUP("y", [ShutDownError("z")])]))
    assert not error_text.is_secondary(GROUP("x", [lost, error]))
    assert error_text.is_secondary(fail(error, lost)) and not error_text.is_secondary(ValueError("boom"))


def test_an_error_whose_text_fails() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

        @property
        def exceptions(self) -> Any:
            raise RuntimeError("no members")

    assert "Odd" in error_text.describe_error(fail(Odd()))
    assert not error_text.is_secondary(fail(Odd()))


@pytest.mark.parametrize(
    ("text", "secondary"),
    [
        (
            "[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [::1]:9: Connection reset by peer",
            True,
        ),
        (
            "UNKNOWN: Gloo AllGather failed: [gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer",
            True,
        ),
        ("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:81] Timed out", False),
        ("Connection reset by peer", False),
    ],
)
def test_gloo_reports_a_lost_peer(text: str, secondary: bool) -> None:
    assert error_text.is_secondary(RuntimeError(text)) is secondary
