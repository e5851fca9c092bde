"""The variables of torchrun, for ranks on several hosts."""

from __future__ import annotations

from spark_estimator.collectives.rendezvous import PeerFacts, Rendezvous
from spark_estimator.collectives.torch_variables import NAMES, make_torch_variables


def test_each_rank_gets_its_place_and_rank_0s_address() -> None:
    hosts = ["a", "a", "b"]
    peers = tuple(PeerFacts(rank, host, host, f"10.0.0.{rank}", 1000 + rank) for rank, host in enumerate(hosts))
    made = [make_torch_variables(Rendezvous("job", b"k" * 32, rank, peers, -1)) for rank in range(3)]
    assert all(set(variables) == set(NAMES) for variables in made)
    assert [variables["RANK"] for variables in made] == ["0", "1", "2"]
    assert [variables["LOCAL_RANK"] for variables in made] == ["0", "1", "0"]
    assert [variables["LOCAL_WORLD_SIZE"] for variables in made] == ["2", "2", "1"]
    assert [variables["GROUP_RANK"] for variables in made] == ["0", "0", "1"]
    assert {variables["GROUP_WORLD_SIZE"] for variables in made} == {"2"}
    assert {(variables["WORLD_SIZE"], variables["MASTER_ADDR"], variables["MASTER_PORT"]) for variables in made} == {
        ("3", "10.0.0.0", "1000")
    }
