"""Explains what a measured speed means for a training, and recommends what to turn on. Pure functions."""

from __future__ import annotations

import statistics

from spark_estimator.collectives.ring_order import LEAST_HOSTS, find_order, sum_costs
from spark_estimator.doctor.findings import Finding, Severity
from spark_estimator.doctor.measurement import CONNECTIONS, Link, Speed
from spark_estimator.env import CONNECTIONS_VARIABLE, RING_ORDER_VARIABLE

# A link with less than this part of the median rate is reported.
_SLOW = 0.5
# More of them would hide the rest.
_MOST_NAMED = 4
# An exchange of fewer seconds is not worth another format.
_SHORT = 0.002
# The least that a format has to save.
_WORTH = 0.8
# Below this, even int8 leaves most of a step's time to the network.
_SLOW_NETWORK_GIGABITS = 1.0
# What several connections have to gain.
_GAIN = 1.25
# What another order of a ring has to save; of many pairs, some seem fast by chance.
_FASTER_LINKS = 0.2
_PAGE = "docs/how-to/fewer-bytes.md"


def describe_speed(speed: Speed) -> list[Finding]:
    """Describe a speed for people, in findings for the session as a whole."""
    turn_on = Finding("turn on", Severity.NOTE, recommend(speed))
    return [
        *_describe_links(speed),
        *_describe_connections(speed),
        *_describe_ring_order(speed),
        _describe_allreduce(speed),
        _describe_gradients(speed),
        turn_on,
    ]


def recommend(speed: Speed) -> str:
    """Recommend the format of gradients, or the strategy, that suits the network; by ``docs/how-to/fewer-bytes.md``."""
    seconds = speed.gradients
    full = seconds["float32"]
    if not speed.links:
        return "nothing: within a host compression saves no time"
    if full < _SHORT:
        return f"nothing: the exchange takes {_format_time(full)}"
    if min(link.gigabits for link in speed.links) < _SLOW_NETWORK_GIGABITS:
        return (
            f"hvd.DiLoCo(optimizer, inner_steps=32): ranks exchange once in 32 steps. Or Compression.int8 for the "
            f"results of one process: {_format_time(seconds['int8'])} a step. See {_PAGE}"
        )
    if seconds["int8"] < full * _WORTH:
        saved = f"saves {_format_time(full - seconds['int8'])} of an exchange"
        return f"Compression.int8, which {saved}; Compression.bf16 for gradients on GPUs. See {_PAGE}"
    if seconds["float16"] < full * _WORTH:
        return f"Compression.bf16, which saves {_format_time(full - seconds['float16'])} of an exchange. See {_PAGE}"
    return "nothing: no format of gradients is much faster here"


def _describe_links(speed: Speed) -> list[Finding]:
    if not speed.links:
        return [Finding("links", Severity.OK, f"one host, whose {speed.ranks} ranks share its memory or loopback")]
    rates = [link.gigabits for link in speed.links]
    latencies = [link.microseconds for link in speed.links]
    usual = statistics.median(rates)
    measured = f"all {speed.pairs}" if len(speed.links) == speed.pairs else f"{len(speed.links)} of {speed.pairs}"
    text = (
        f"{measured} pairs of {len(speed.hosts)} hosts: {usual:.2f} Gbit/s each way ({min(rates):.2f} to "
        f"{max(rates):.2f}), {statistics.median(latencies):.0f} us ({min(latencies):.0f} to {max(latencies):.0f})"
    )
    slow = sorted((link for link in speed.links if link.gigabits < usual * _SLOW), key=lambda link: link.gigabits)
    return [Finding("links", Severity.OK, text), *(_describe_slow_link(link, usual) for link in slow[:_MOST_NAMED])]


def _describe_slow_link(link: Link, usual: float) -> Finding:
    text = f"{link.first} and {link.second} reach {link.gigabits:.2f} Gbit/s, other pairs {usual:.2f}: all wait for it"
    fix = "check the speed of their network interfaces (ethtool) and what else they send, or leave one of them out"
    return Finding("slow link", Severity.NOTE, text, fix)


def _describe_connections(speed: Speed) -> list[Finding]:
    rate_of = {(link.first, link.second): link.gigabits for link in speed.links}
    pairs = [(rate_of[link.first, link.second], link.gigabits) for link in speed.striped]
    if not pairs or statistics.median(several / single for single, several in pairs) < _GAIN:
        return []
    single, several = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    text = f"{CONNECTIONS} between two ranks carry {several:.2f} Gbit/s each way, one {single:.2f}"
    fix = f"set {CONNECTIONS_VARIABLE}={CONNECTIONS} for jobs with one rank a host"
    return [Finding("connections", Severity.NOTE, text, fix)]


def _describe_ring_order(speed: Speed) -> list[Finding]:
    if len(speed.hosts) < LEAST_HOSTS or len(speed.links) < speed.pairs:
        return []
    indices = {host: place for place, host in enumerate(speed.hosts)}
    costs = {(indices[link.first], indices[link.second]): 1 / link.gigabits for link in speed.links}
    order = find_order(costs, len(indices))
    saved = 1 - sum_costs(order, costs) / sum_costs(range(len(indices)), costs)
    if saved < _FASTER_LINKS:
        return []
    names = ", ".join(speed.hosts[host] for host in order)
    text = f"a ring through {names} would take {saved:.0%} less time on its links"
    fix = f"set {RING_ORDER_VARIABLE}=measured: init() then finds such an order"
    return [Finding("ring order", Severity.NOTE, text, fix)]


def _describe_allreduce(speed: Speed) -> Finding:
    parts = [f"{_format_bytes(count)} {_format_time(seconds)}" for count, seconds in speed.allreduce.items()]
    return Finding("allreduce", Severity.OK, f"{speed.ranks} ranks: {', '.join(parts)}")


def _describe_gradients(speed: Speed) -> Finding:
    names = {"float32": "float32", "float16": "float16 or bfloat16", "int8": "int8"}
    parts = [f"{_format_time(seconds)} as {names[form]}" for form, seconds in speed.gradients.items()]
    text = (
        f"of {speed.parameters:,} parameters ({_format_bytes(4 * speed.parameters)}) take {', '.join(parts)}; a step "
        "is longer by what the backward pass does not hide of it"
    )
    return Finding("gradients", Severity.OK, text)


def _format_time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.0f} us"


def _format_bytes(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} B"
