"""Which ranks of a group connect at once, and the file descriptors that this needs.

In a group of up to `Settings.mesh_ranks` ranks each two have a control and a data connection. In a larger one the
control connections form an overlay (``native/engine/membership/overlay.h``), about 2 log2(ranks) for each rank, and
those of data are made on first use.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from spark_estimator import _native
from spark_estimator.collectives.connections import descriptors
from spark_estimator.collectives.rendezvous import Rendezvous
from spark_estimator.env import Settings


def is_overlay(ranks: Sequence[int], settings: Settings) -> bool:
    """Return whether a group of these ranks is connected as an overlay."""
    return len(ranks) > settings.mesh_ranks


def find_neighbours(position: int, size: int) -> list[int]:
    """Return the positions that `position` of `size` is connected with in an overlay, ascending."""
    positions = (ctypes.c_int32 * _native.MOST_NEIGHBOURS)()
    count = _native.library().se_neighbours(position, size, positions)
    return positions[:count]


def find_local_ranks(rendezvous: Rendezvous, ranks: Sequence[int]) -> list[int]:
    """Return the ranks, of `ranks`, that can share memory with this rank, which is one of them; in the same order."""
    peers = rendezvous.peers
    own_facts = peers[rendezvous.rank]
    return [rank for rank in ranks if rank == own_facts.rank or peers[rank].shares_with(own_facts)]


def find_control_peers(rendezvous: Rendezvous, ranks: Sequence[int], settings: Settings) -> list[int]:
    """Return the ranks of a group with which this one, also of it, has a control connection; in the group's order.

    In an overlay: its neighbours, and those on the circle of the ranks of its host, which pass segments on.
    """
    own_rank = rendezvous.rank
    if not is_overlay(ranks, settings):
        return [rank for rank in ranks if rank != own_rank]
    connected: set[int] = set()
    for circle in (ranks, find_local_ranks(rendezvous, ranks)):
        connected.update(circle[position] for position in find_neighbours(circle.index(own_rank), len(circle)))
    return [rank for rank in ranks if rank in connected]


def count_descriptors(rendezvous: Rendezvous, ranks: Sequence[int], settings: Settings) -> int:
    """Return how many file descriptors this rank needs for a group of ranks, if the others have the same settings.

    In an overlay that includes as many data connections as allreduces, broadcasts and allgathers use.

    Numbers that no rank has count as ranks of this host; such a group is refused by its caller.
    """
    peers = rendezvous.peers
    members = [rank for rank in ranks if 0 <= rank < len(peers)]
    if is_overlay(ranks, settings) and rendezvous.rank in members:
        segments = len(find_local_ranks(rendezvous, members)) - 1
        data = 2 * len(ranks).bit_length() * settings.connections
        return descriptors.count_for_peers(len(find_control_peers(rendezvous, members, settings)) + segments + data)
    own_host = peers[rendezvous.rank].host_id
    elsewhere = sum(peers[rank].host_id != own_host for rank in members)
    return descriptors.count_for_ranks(len(ranks)) + (settings.connections - 1) * elsewhere
