"""Where rank 0's server listens."""

from __future__ import annotations

import socket

from spark_estimator.collectives.other_launchers.addresses import find_own_addresses, listen


def test_this_hosts_addresses_can_be_listened_at() -> None:
    addresses = find_own_addresses()
    assert addresses
    listeners = listen([addresses], [0])
    assert [listener.getsockname()[0] for listener in listeners] == addresses
    for listener in listeners:
        with socket.create_connection(listener.getsockname()[:2]):
            pass
        listener.close()


def test_a_port_that_somebody_has_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (listener,) = listen([["127.0.0.1"]], [port, 0])
        assert listener.getsockname()[1] != port
        listener.close()
        assert listen([["127.0.0.1"]], [port]) == []


def test_an_address_of_another_host_gives_way_to_the_next_choice() -> None:
    (listener,) = listen([["203.0.113.77"], ["127.0.0.1"]], [0])
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()
