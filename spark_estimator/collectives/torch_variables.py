"""The variables that torch expects of a launcher, for a rank of a job of this package."""

from __future__ import annotations

from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import MASTER_VARIABLE

#: The names, all of one rank and one attempt.
NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    MASTER_VARIABLE,
)


def make_torch_variables(rendezvous: Rendezvous) -> dict[str, str]:
    """Return the variables that torchrun would set for this rank.

    MASTER_PORT is the port at which rank 0 listens for its peers. Torch's own handler of ``env://`` fails there,
    because the port is in use, and so does not listen at every interface. The handler of
    ``extensions.process_group.creation`` needs no port.
    """
    topology, master = rendezvous.topology, rendezvous.peers[0]
    hosts = list(dict.fromkeys(peer.host_id for peer in rendezvous.peers))
    return {
        "RANK": str(topology.rank),
        "WORLD_SIZE": str(topology.size),
        "LOCAL_RANK": str(topology.local_rank),
        "LOCAL_WORLD_SIZE": str(topology.local_size),
        "GROUP_RANK": str(hosts.index(rendezvous.peers[rendezvous.rank].host_id)),
        "GROUP_WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        MASTER_VARIABLE: f"{master.address}:{master.port}",
    }
