"""Gives the ranks of a new membership the same anchors: at the start, and when a job has lost or gained ranks.

No step is undone: ranks that have made equally many outer steps keep their steps since then. A rank that missed the
last outer step, because the job broke in the middle of it, takes that step's result, which includes its own part. A
rank that has just joined copies everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.extensions.local_steps.fragment import Fragment
from spark_estimator.torch import ProcessSet, allgather_object, broadcast_async_, global_process_set, synchronize


def check_settings(lines: Sequence[str], name: str, process_set: ProcessSet | None) -> None:
    """Compare the ranks' settings and parameters. Collective. Raise MismatchError for the first difference."""
    check_identical(lines, name=f"{name}.agreement", subject="the parameters of DiLoCo", process_set=process_set)


@torch.no_grad()
def agree_anchors(fragments: Sequence[Fragment], steps: int, name: str, process_set: ProcessSet | None) -> int:
    """Give all ranks the anchors of those that have made most outer steps. Collective.

    Args:
        fragments: at rest; alike on all ranks, but for what they hold.
        steps: of the schedule, which this rank has made.
        name: of the requests.
        process_set: of these ranks; None: all.

    Returns:
        The steps of the schedule, the same on all ranks.

    Raises:
        HorovodInternalError: a rank is lost.
    """
    contents = [(fragment.version, _compute_digest(fragment)) for fragment in fragments]
    members = process_set or global_process_set
    everybody: list[tuple[list[tuple[int, str]], int]] = allgather_object((contents, steps), f"{name}.meeting", members)
    ranks = context.engine(process_set).ranks
    for number, fragment in enumerate(fragments):
        contents_of_ranks = [of_rank[number] for of_rank, _ in everybody]
        latest = max(contents_of_ranks)[0]
        if len(set(contents_of_ranks)) > 1:
            root = next(rank for rank, (version, _) in zip(ranks, contents_of_ranks, strict=True) if version == latest)
            _take_over(fragment, latest, root, f"{name}.anchors.{number}", members)
    return max((sum(version for version, _ in of_rank), of_steps) for of_rank, of_steps in everybody)[1]


def _compute_digest(fragment: Fragment) -> str:
    digest = hashlib.sha256()
    for tensor in (*fragment.anchors, *fragment.momenta):
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_over(fragment: Fragment, version: int, root: int, name: str, process_set: ProcessSet) -> None:
    before = [anchor.clone() for anchor in fragment.anchors]
    tensors = [*fragment.anchors, *fragment.momenta]
    handles = [
        broadcast_async_(tensor, root, f"{name}.{number}", process_set=process_set)
        for number, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    for param, anchor, former in zip(fragment.params, fragment.anchors, before, strict=True):
        if fragment.version == version:
            param.add_((anchor - former).to(param.dtype))
        else:
            param.copy_(anchor)
    fragment.version = version
