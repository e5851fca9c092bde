"""Ports are free ones, and a port that is taken is reported with its process and user."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator

import cluster_ports
import pytest
from cluster_ports import PortError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_each_name_gets_a_port_of_its_own() -> None:
    ports = cluster_ports.choose({})
    assert set(ports) == {"master", "master-ui", "connect", "jupyter"}
    assert len(set(ports.values())) == 4
    assert all(cluster_ports.is_free(port) for port in ports.values())


def test_the_next_free_port_replaces_a_preferred_one_that_is_in_use(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cluster_ports.PREFERRED, "connect", taken)
    assert taken < cluster_ports.choose({})["connect"] < taken + cluster_ports.ATTEMPTS


def test_a_port_that_was_asked_for_by_another_name_is_left_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    ports = cluster_ports.choose({"jupyter": cluster_ports.choose({})["master"]})
    assert ports["master"] != ports["jupyter"]
    assert cluster_ports.choose({"connect": free})["connect"] == free


def test_a_wanted_port_in_use_names_its_process_and_user(taken: int) -> None:
    with pytest.raises(PortError) as raised:
        cluster_ports.choose({"connect": taken})
    text = str(raised.value)
    assert text.startswith(f"Port {taken} (for connect) is in use. {taken} is used by pid {os.getpid()} of user ")
    assert pwd.getpwuid(os.getuid()).pw_name in text
    assert f"make cluster CLUSTER_PORTS=connect={taken + 100}" in text


def test_a_port_of_all_addresses_is_in_use_on_the_loopback_address() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        assert not cluster_ports.is_free(server.getsockname()[1])


@pytest.mark.parametrize(
    ("text", "ports"),
    [("", {}), ("master=7078,jupyter=9999", {"master": 7078, "jupyter": 9999}), ("connect=15003", {"connect": 15003})],
)
def test_ports_are_read_from_text(text: str, ports: dict[str, int]) -> None:
    assert cluster_ports.parse(text) == ports


@pytest.mark.parametrize("text", ["spark=7077", "master=80", "master=", "master=70777", "7077"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PortError, match="CLUSTER_PORTS"):
        cluster_ports.parse(text)
