"""Parsing of -H and hostfiles, and the ranks of each host."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_estimator.launch.job.hosts import Host, Share, assign_hosts, is_here, parse_hosts, read_hostfile


def test_hosts_keep_their_order_and_those_named_twice_have_both_slots() -> None:
    assert parse_hosts("b:4, a.b-c:2,b:1,me@10.0.0.1,[fe80::1%eth0]:3") == [
        *(Host("b", 5), Host("a.b-c", 2), Host("me@10.0.0.1", 1), Host("fe80::1%eth0", 3))
    ]


def test_a_hostfile_may_have_comments_and_empty_lines(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\n\nb slots=4\na  slots = 2 # slow\nc\nd:3\n")
    assert read_hostfile(str(file)) == [Host("b", 4), Host("a", 2), Host("c", 1), Host("d", 3)]
    file.write_text("a slots=2\nb slots=many\n")
    with pytest.raises(ValueError, match="line 2: 'b slots=many' must have the form: host slots=n"):
        read_hostfile(str(file))
    file.write_text("# none\n")
    with pytest.raises(ValueError, match="has no hosts"):
        read_hostfile(str(file))


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:-1", "-a:1", "-oProxy=x:1", "me@-a:1", "a b:1", "a;b:1", ":2"])
def test_what_is_no_host_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="must have the form host:slots"):
        parse_hosts(f"{text},b:1")


def test_a_host_without_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="a:1,b:0: b has no slot"):
        parse_hosts("a:1,b:0")


def test_ranks_fill_the_hosts_in_order() -> None:
    hosts = [Host("a", 4), Host("b", 4), Host("c", 1)]
    assert assign_hosts(hosts, 6, "-") == [Share(hosts[0], range(4)), Share(hosts[1], range(4, 6))]
    assert assign_hosts(hosts, 9, "-")[2] == Share(hosts[2], range(8, 9))
    with pytest.raises(ValueError, match="a:4,b:4,c:1 offers 9 slots, but 10 ranks were requested"):
        assign_hosts(hosts, 10, "a:4,b:4,c:1")


def test_this_host_is_known_by_name_and_address() -> None:
    assert is_here("localhost") and is_here("127.0.0.1") and is_here("::1")
    assert not is_here("192.0.2.1") and not is_here("me@localhost") and not is_here("no-such-host.invalid")
