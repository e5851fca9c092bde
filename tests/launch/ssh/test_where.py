"""A user's settings of hosts become the place of a job: this host, several, or those of a script."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_estimator.elastic.decisions import Terms
from spark_estimator.errors import PreflightError
from spark_estimator.launch.job.hosts import Host
from spark_estimator.launch.ssh.command import SshOptions
from spark_estimator.launch.ssh.where import Where, find_hosts

OTHER = "192.0.2.7"  # an address for documentation: no host has it
SSH = SshOptions()
TERMS = Terms(2, 1, timeout=timedelta(seconds=5))


def where(size: int, **arguments: Any) -> tuple[Where, list[bool], list[str]]:
    """What was found, whether ssh was needed, and the lines."""
    needed: list[bool] = []
    lines: list[str] = []

    def read_options(is_needed: bool) -> SshOptions:
        needed.append(is_needed)
        return SSH

    return find_hosts(size, read_options, lines.append, **arguments), needed, lines


@pytest.mark.parametrize("hosts", [None, "localhost:4", f"localhost:2,{OTHER}:2", f"{socket.gethostname()}:2"])
def test_ranks_that_fit_on_this_host_need_no_ssh(hosts: str | None) -> None:
    assert where(2, hosts=hosts) == (Where(), [], [])


def test_other_hosts_are_reached_by_ssh(tmp_path: Path) -> None:
    expected = [Host("localhost", 2), Host(OTHER, 2)]
    assert where(3, hosts=f"localhost:2,{OTHER}:2") == (Where(expected, SSH), [True], [])
    file = tmp_path / "hosts"
    file.write_text(f"localhost slots=2\n{OTHER} slots=2  # a comment\n")
    assert where(3, hostfile=str(file)) == (Where(expected, SSH), [True], [])


def test_a_script_names_the_hosts_of_an_elastic_job() -> None:
    place, needed, lines = where(2, script=f"echo localhost:1; echo {OTHER}", slots_per_host=3, terms=TERMS)
    assert place.hosts == [Host("localhost", 1), Host(OTHER, 3)]
    assert (place.options, place.terms, needed, lines) == (SSH, TERMS, [True], []) and place.watch is not None
    place, needed, _ = where(1, script="echo localhost", terms=TERMS)
    assert needed == [False], "hosts that come later may need ssh; none does yet"


def test_an_elastic_job_begins_with_all_slots_that_it_may_have() -> None:
    terms = Terms(2, 1, replace=True, max_size=4)
    for slots, size in ((2, 2), (3, 3), (9, 4)):
        begun = where(2, hosts=f"localhost:{slots}", terms=terms)[0].terms
        assert begun is not None and begun.size == size


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hosts": "a:1", "script": "echo a", "terms": TERMS}, "hosts a:1 and host discovery script echo a: only one"),
        ({"script": "echo a"}, "host discovery script echo a needs an elastic job"),
        ({"slots_per_host": 2}, "slots_per_host=2 needs a host discovery script"),
        ({"hosts": "localhost:1"}, "localhost:1 offers 1 slots, but 2 ranks were requested"),
        ({"hosts": "localhost:x"}, "must have the form host:slots"),
    ],
)
def test_settings_that_do_not_fit_together_are_quoted(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        where(2, **arguments)


def test_a_script_that_fails_is_an_error() -> None:
    with pytest.raises(PreflightError, match="exit status 3"):
        where(1, script="exit 3", terms=TERMS)
