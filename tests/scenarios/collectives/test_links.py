"""Links that fail in one direction, flap, or are slow and uneven: the ranks connect through proxies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.plan import Fault, Kind
from chaos.proxy import Proxy
from spark_estimator.collectives.rendezvous import Endpoint, make_job
from tests.ranks import Outcome, Ranks

LIMITS = {"SPARK_ESTIMATOR_HEARTBEAT_SECONDS": "0.2", "SPARK_ESTIMATOR_SILENCE_SECONDS": "3"}


def reduce_through(_rank: int, go: str, rounds: int) -> str:
    """Allreduces before and after `go` exists; returns "right", or the text of the lost peer."""
    import time
    from pathlib import Path

    import numpy

    from spark_estimator.collectives import arrays, context
    from spark_estimator.errors import PeerLostError

    context.init()
    arrays.barrier()
    print("connected", flush=True)
    while not Path(go).exists():
        time.sleep(0.01)
    try:
        for number in range(rounds):
            total = arrays.allreduce(numpy.arange(100_000.0), arrays.ReduceOp.SUM, f"n{number}")
            assert (total == 2 * numpy.arange(100_000.0)).all()
    except PeerLostError as error:
        return str(error)
    finally:
        context.shutdown()
    return "right"


@contextlib.contextmanager
def two_ranks(go: Path, kind: Kind, rounds: int, *, from_the_start: bool = False) -> Iterator[list[Outcome]]:
    """Two ranks as if on two hosts, whose link has this fault; yields what became of them."""
    endpoints = [Endpoint.open("127.0.0.1") for _ in range(2)]
    proxy = Proxy(endpoints[1].port, "links")
    fault = Fault(kind, 1, 0, 0)
    try:
        if from_the_start:
            proxy.strike(fault)
        peers = [
            replace(endpoint.facts(rank), host=f"host{rank}", host_id=f"host{rank}", local_name="")
            for rank, endpoint in enumerate(endpoints)
        ]
        peers[1] = replace(peers[1], port=proxy.port)
        with Ranks(reduce_through, make_job(endpoints, peers), args=(str(go), rounds), environ=LIMITS) as ranks:
            for rank in range(2):
                ranks.await_output(rank, "connected")
            proxy.strike(fault)
            go.touch()
            yield ranks.wait(timeout=60)
    finally:
        proxy.close()


@pytest.mark.parametrize("kind", [Kind.ONE_WAY, Kind.CUT])
def test_both_sides_of_a_cut_come_to_the_same_verdict(tmp_path: Path, kind: Kind) -> None:
    """Also of one that lets one direction pass."""
    with two_ranks(tmp_path / "go", kind, 1000) as outcomes:
        assert "rank 1" in outcomes[0].value, outcomes[0]
        assert "rank 0" in outcomes[1].value, outcomes[1]


@pytest.mark.parametrize("kind", [Kind.FLAP, Kind.DELAY])
def test_a_link_that_flaps_or_is_uneven_is_waited_for(tmp_path: Path, kind: Kind) -> None:
    with two_ranks(tmp_path / "go", kind, 5) as outcomes:
        assert [outcome.value for outcome in outcomes] == ["right"] * 2, outcomes


def test_ranks_connect_over_a_link_that_is_uneven(tmp_path: Path) -> None:
    with two_ranks(tmp_path / "go", Kind.DELAY, 2, from_the_start=True) as outcomes:
        assert [outcome.value for outcome in outcomes] == ["right"] * 2, outcomes
