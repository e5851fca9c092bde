"""A key that the user gives, and what follows from it."""

from __future__ import annotations

import pytest

from spark_estimator.collectives.other_launchers.notices import AgreedBoard, derive_key, make_file_name

SECRET = "0123456789abcdef" * 4


def test_each_job_gets_a_key_of_its_own_from_the_users() -> None:
    keys = {derive_key(SECRET, "a"), derive_key(SECRET, "b"), derive_key(SECRET[::-1], "a")}
    assert len(keys) == 3 and {len(key) for key in keys} == {32}
    assert derive_key(SECRET, "a") in keys


def test_a_key_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 31 characters, and needs at least 32.*openssl rand -hex 32"):
        derive_key("x" * 31, "a")


def test_the_ports_follow_from_the_key_and_are_below_those_of_connections() -> None:
    board, same, other = (AgreedBoard("127.0.0.1", key) for key in (b"k" * 32, b"k" * 32, b"o" * 32))
    assert board.ports == same.ports != other.ports
    assert len(board.ports) == 16 and all(20000 <= port < 32768 for port in board.ports)
    assert board.publish([]) == b"k" * 32
    notice = board.find()
    assert notice is not None
    assert notice.places == tuple(("127.0.0.1", port) for port in board.ports)


def test_a_master_whose_name_is_not_known_yet_is_no_notice_yet() -> None:
    assert AgreedBoard("no-such-host.invalid", b"k" * 32).find() is None


def test_a_files_name_tells_nothing() -> None:
    assert make_file_name("torchrun none 0") != make_file_name("torchrun none 1")
    assert make_file_name("a/../b").isalnum()
