"""Which Spark addresses have a listener."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spark_estimator.doctor.address import explain_silence

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy", "GRPC_PROXY", "HTTPS_PROXY", "HTTP_PROXY")


@pytest.fixture
def open_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def _without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def test_one_of_two_masters_is_enough(open_port: int, closed_port: int) -> None:
    assert explain_silence(f"spark://127.0.0.1:{closed_port},127.0.0.1:{open_port}") == ""


@pytest.mark.parametrize("address", ["spark://127.0.0.1:{}", "sc://127.0.0.1:{}/;token=x"])
def test_a_closed_port_is_named_with_the_systems_error(closed_port: int, address: str) -> None:
    text = explain_silence(address.format(closed_port))
    assert text.startswith(f"no answer at {address.format(closed_port)} (127.0.0.1 port {closed_port}: ")
    assert "refused" in text and not text.endswith(".")


def test_a_spark_connect_server_may_be_behind_a_proxy(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    monkeypatch.setenv("grpc_proxy", "http://proxy.invalid:3128")
    assert explain_silence(f"sc://spark.invalid:{closed_port}") == "", "only the proxy knows"
    assert explain_silence(f"spark://127.0.0.1:{closed_port}") != "", "a classic session uses no proxy"


@pytest.mark.parametrize("address", ["yarn", "local[2]", "k8s://x", "spark://", "spark://host", "sc://:1", ""])
def test_other_addresses_are_not_judged(address: str) -> None:
    assert explain_silence(address) == ""
