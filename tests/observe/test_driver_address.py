"""The address at which the driver listens."""

from __future__ import annotations

import pytest

from spark_estimator.observe.driver_address import find_driver_address


def test_the_driver_listens_at_its_own_address() -> None:
    assert find_driver_address("127.0.0.1") == "127.0.0.1"
    assert find_driver_address("localhost") in ("127.0.0.1", "::1")
    # Not this host's: the address that routes there is.
    address = find_driver_address("192.0.2.77", "127.0.0.1")
    assert address == "127.0.0.1"
    with pytest.raises(OSError, match="no address"):
        find_driver_address("no.such.host.invalid")


def test_an_address_of_this_host_is_used_as_it_is() -> None:
    assert find_driver_address("127.0.0.2") == "127.0.0.2"


def test_a_wildcard_is_not_an_address_for_executors() -> None:
    assert find_driver_address("0.0.0.0", "127.0.0.1") == "127.0.0.1"


def test_without_any_address_the_error_names_the_preferred_one() -> None:
    with pytest.raises(OSError, match=r"no address of this host leads to 'no\.host\.invalid'"):
        find_driver_address("no.host.invalid")
