"""Decides which gradients are sent together. Pure: from numbers and names to lists of positions.

A *bucket* is a list of gradients that are reduced by one request as soon as the last of them is known. Autograd gives
gradients in about the reverse order of the parameters, so buckets are filled in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Gradient:
    """The facts on one parameter's gradient that planning needs, and that must be equal on all ranks.

    Attributes:
        name: of the parameter.
        shape: of the parameter, and of its gradient.
        order: strides of the dimensions that are longer than 1: the order in which its elements are sent.
        dtype: name of the parameter's element type.
        wire_dtype: name of the type in which it is sent; "" when only a custom compressor knows.
        wire_bytes: its size on the wire.
        on_gpu: whether it is sent from a GPU.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str
    wire_dtype: str
    wire_bytes: int
    on_gpu: bool = False

    @property
    def companions(self) -> tuple[str, bool]:
        """Return the key of gradients that can be sent together."""
        return self.wire_dtype, self.on_gpu


def plan(
    gradients: Sequence[Gradient], bucket_bytes: int, groups: int | Sequence[Sequence[int]] | None = None
) -> list[list[int]]:
    """Divides gradients into buckets; each position is in exactly one, and a bucket holds one wire type in one memory.

    Args:
        gradients: in the order of the optimizer's parameters.
        bucket_bytes: a bucket is closed before it would exceed this size in bytes; a larger gradient gets a separate
            bucket.
        groups: None: by `bucket_bytes`. A number: of nearly equal runs of the parameter order. Lists of positions: each
            list together, in the parameter order; each other parameter alone.

    Returns:
        Buckets in the order in which they are expected to be complete. One whose wire type is not known is alone.
    """
    if groups is not None:
        buckets = [
            bucket for group in _to_positions(groups, len(gradients)) for bucket in _group_by_type(gradients, group)
        ]
        return sorted(buckets, key=max, reverse=True)
    buckets = []
    open_buckets: dict[tuple[str, bool], tuple[list[int], int]] = {}
    for position in reversed(range(len(gradients))):
        gradient = gradients[position]
        bucket, filled = open_buckets.get(gradient.companions, ([], 0))
        if not bucket or not gradient.wire_dtype or filled + gradient.wire_bytes > bucket_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(position)
        open_buckets[gradient.companions] = (bucket, filled + gradient.wire_bytes)
    return buckets


def describe_plan(gradients: Sequence[Gradient], buckets: Sequence[Sequence[int]], header: str) -> list[str]:
    """Describe the plan, one line a parameter: what ranks compare before the first gradient is sent."""
    bucket_of = {position: number for number, bucket in enumerate(buckets) for position in bucket}
    return [header] + [
        f"parameter {gradient.name}: shape {gradient.shape}, strides {gradient.order}, {gradient.dtype}, "
        f"sent as {gradient.wire_dtype or 'compressed'}{' from a GPU' if gradient.on_gpu else ''} in bucket "
        f"{bucket_of[position]}"
        for position, gradient in enumerate(gradients)
    ]


def _to_positions(groups: int | Sequence[Sequence[int]], count: int) -> list[list[int]]:
    if isinstance(groups, int):
        number = min(groups, count)
        return [list(range(count * i // number, count * (i + 1) // number)) for i in range(number)]
    grouped = {position for group in groups for position in group}
    return [sorted(group) for group in groups] + [[position] for position in range(count) if position not in grouped]


def _group_by_type(gradients: Sequence[Gradient], group: Sequence[int]) -> list[list[int]]:
    of_type: dict[tuple[str, bool], list[int]] = {}
    for position in group:
        wire_dtype, on_gpu = gradients[position].companions
        key = wire_dtype or f"alone {position}", on_gpu
        of_type.setdefault(key, []).append(position)
    return list(of_type.values())
