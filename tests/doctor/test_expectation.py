"""The report on a measured speed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from spark_estimator.doctor.expectation import describe_speed, recommend
from spark_estimator.doctor.findings import Severity
from spark_estimator.doctor.measurement import Link, Speed

TEN_GIGABITS = Speed(
    ranks=4,
    hosts=("a", "b", "c"),
    links=(Link("a", "b", 9.4, 60), Link("a", "c", 9.0, 70), Link("b", "c", 9.2, 65)),
    pairs=3,
    allreduce={4: 60e-6, 1 << 20: 1.5e-3},
    parameters=100_000_000,
    gradients={"float32": 0.45, "float16": 0.23, "int8": 0.12},
)
ONE_HOST = dataclasses.replace(TEN_GIGABITS, hosts=("a",), links=(), pairs=0, gradients={"float32": 0.05})


def with_rates(*gigabits: float) -> Speed:
    links = [dataclasses.replace(link, gigabits=rate) for link, rate in zip(TEN_GIGABITS.links, gigabits, strict=True)]
    return dataclasses.replace(TEN_GIGABITS, links=tuple(links))


def with_gradients(*seconds: float) -> Speed:
    return dataclasses.replace(TEN_GIGABITS, gradients=dict(zip(TEN_GIGABITS.gradients, seconds, strict=True)))


def test_the_report() -> None:
    links, allreduce, gradients, turn_on = describe_speed(TEN_GIGABITS)
    assert links.text == "all 3 pairs of 3 hosts: 9.20 Gbit/s each way (9.00 to 9.40), 65 us (60 to 70)"
    assert allreduce.text == "4 ranks: 4 B 60 us, 1 MiB 1.5 ms"
    assert gradients.text.startswith(
        "of 100,000,000 parameters (381.5 MiB) take 450 ms as float32, 230 ms as float16 or bfloat16, 120 ms as int8; "
    )
    assert turn_on.text.startswith("Compression.int8, which saves 330 ms of an exchange")


def test_a_slow_link_is_named() -> None:
    speed = with_rates(9.4, 0.94, 9.2)
    slow = [finding for finding in describe_speed(speed) if finding.name == "slow link"]
    assert [finding.text for finding in slow] == ["a and c reach 0.94 Gbit/s, other pairs 9.20: all wait for it"]
    assert slow[0].state is Severity.NOTE and "ethtool" in slow[0].fix
    assert "3 of 10 pairs" in describe_speed(dataclasses.replace(speed, pairs=10))[0].text


@pytest.mark.parametrize(("between_racks", "named"), [(9.4, False), (2.5, True)])
def test_an_order_of_the_ring_is_named_if_its_links_are_faster(between_racks: float, named: bool) -> None:
    hosts = ("a1", "b1", "a2", "b2")
    links = tuple(
        Link(first, second, 9.4 if first[0] == second[0] else between_racks, 60)
        for first, second in itertools.combinations(hosts, 2)
    )
    speed = dataclasses.replace(TEN_GIGABITS, hosts=hosts, links=links, pairs=6)
    orders = [finding for finding in describe_speed(speed) if finding.name == "ring order"]
    assert len(orders) == named
    if named:
        assert orders[0].text == "a ring through a1, a2, b1, b2 would take 37% less time on its links"
        assert orders[0].fix.startswith("set SPARK_ESTIMATOR_RING_ORDER=measured")
    fewer = dataclasses.replace(speed, links=links[1:])
    assert "ring order" not in [finding.name for finding in describe_speed(fewer)]


@pytest.mark.parametrize(("gigabits", "named"), [((9.5, 9.2), False), ((24.0, 23.0), True)])
def test_several_connections_are_named_if_they_carry_more(gigabits: tuple[float, float], named: bool) -> None:
    striped = (Link("a", "b", gigabits[0], 60), Link("a", "c", gigabits[1], 70))
    findings = describe_speed(dataclasses.replace(TEN_GIGABITS, striped=striped))
    connections = [finding for finding in findings if finding.name == "connections"]
    assert len(connections) == named
    if named:
        assert connections[0].text == "4 between two ranks carry 23.50 Gbit/s each way, one 9.20"
        assert connections[0].fix == "set SPARK_ESTIMATOR_CONNECTIONS=4 for jobs with one rank a host"


@pytest.mark.parametrize(
    ("speed", "begins"),
    [
        (ONE_HOST, "nothing: within a host"),
        (
            with_gradients(0.001, 1e-4, 1e-4),
            "nothing: the",
        ),
        (with_rates(9.0, 0.9, 9.0), "hvd.DiLoCo(optimizer, inner_steps=32)"),
        (TEN_GIGABITS, "Compression.int8"),
        (
            with_gradients(0.4, 0.2, 0.39),
            "Compression.bf16",
        ),
        (with_gradients(0.4, 0.4, 0.4), "nothing: no"),
    ],
)
def test_advice(speed: Speed, begins: str) -> None:
    assert recommend(speed).startswith(begins)


def test_one_host_has_no_links() -> None:
    assert describe_speed(ONE_HOST)[0].text == "one host, whose 4 ranks share its memory or loopback"
