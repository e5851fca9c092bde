"""Checks the arguments of ``DistributedOptimizer`` before anything is changed. Each function raises ValueError."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import context
from spark_estimator.collectives.ops import to_whole_number
from spark_estimator.collectives.process_set import ProcessSet, check_registered
from spark_estimator.collectives.reductions import describe_op
from spark_estimator.torch.collectives.compressors import CASTS, UNCHOSEN, BucketCompression, checked_compression
from spark_estimator.torch.collectives.memory import check_parameter, describe_call


def check_optimizer(optimizer: object, kind: str) -> None:
    """Check that it can be wrapped; `kind` is the wrapper's name."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return
    argument = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else reprlib.repr(optimizer)
    raise ValueError(
        f"{describe_call(kind)}: an optimizer object is needed, such as torch.optim.SGD(model.parameters(), lr=0.1), "
        f"not {argument}."
    )


def check_op(op: int) -> ReduceOp:
    try:
        if not isinstance(op, bool) and ReduceOp(op) in (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM):
            return ReduceOp(op)
    except ValueError:
        pass
    raise ValueError(
        f"{describe_call('DistributedOptimizer')}: op={describe_op(op)} must be hvd.Average, hvd.Sum or hvd.Adasum."
    )


def count_ranks(process_set: ProcessSet | None) -> int:
    """Return with how many ranks gradients are exchanged; 1 outside the set. Raises in a forked process."""
    size = context.size()
    context.check_not_forked()
    if process_set is None:
        return size
    check_registered(process_set)
    return len(process_set.ranks) if process_set.included() else 1


def check_passes(passes: int) -> None:
    if (to_whole_number(passes) or 0) <= 0:
        raise ValueError(f"backward_passes_per_step={passes!r} must be an integer greater than 0.")


def check_predivide(factor: Any, op: ReduceOp) -> None:
    if not isinstance(factor, numbers.Real) or not 0 < float(factor) < math.inf:
        raise ValueError(f"gradient_predivide_factor={factor!r} must be a number greater than 0.")
    if factor != 1.0 and op is not ReduceOp.AVERAGE:
        raise ValueError(f"gradient_predivide_factor={factor} requires op=hvd.Average.")


def choose_compression(compression: object, op: ReduceOp) -> object:
    """Return the compression of one optimizer; the environment's choice if the user made none."""
    if compression is UNCHOSEN:
        return CASTS[context.settings().compression]
    checked = checked_compression(compression)
    if op is ReduceOp.ADASUM and isinstance(checked, BucketCompression):
        raise ValueError(
            f"{describe_call('DistributedOptimizer')}: compression={compression!r} is not supported with "
            "op=hvd.Adasum, which combines parameter updates, not gradients. Use op=hvd.Average, or "
            "hvd.Compression.none, fp16 or bf16."
        )
    return checked


def check_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None) -> dict[int, str]:
    names = {} if named_parameters is None else _map_names(optimizer, named_parameters)
    for group_number, group in enumerate(optimizer.param_groups):
        for number, param in enumerate(group["params"]):
            if param.requires_grad:
                name = names.get(id(param), f"parameter {number} of group {group_number}")
                check_parameter(str(name), param, "DistributedOptimizer")
    return names


def _map_names(optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any]) -> dict[int, str]:
    try:
        pairs = list(named_parameters)
    except TypeError:
        raise ValueError(
            "named_parameters takes model.named_parameters(), or a list of tuples (name, parameter), not "
            f"{reprlib.repr(named_parameters)}."
        ) from None
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], (str, int)):
            raise ValueError(
                "named_parameters must hold tuples (name, parameter), as model.named_parameters() returns them, not "
                f"{reprlib.repr(pair)}."
            )
    duplicates = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if duplicates:
        raise ValueError(
            f"Names in named_parameters must be unique; given more than once: {', '.join(map(str, duplicates))}."
        )
    names = {id(param): name for name, param in pairs}
    for group_number, group in enumerate(optimizer.param_groups):
        for number, param in enumerate(group["params"]):
            if id(param) not in names:
                raise ValueError(
                    f"named_parameters does not name all of the optimizer's parameters: number {number} of group "
                    f"{group_number}, of shape {tuple(param.shape)}, is missing. Pass the named_parameters() of every "
                    "module that the optimizer trains."
                )
    return names


def check_groups(
    optimizer: torch.optim.Optimizer, groups: int | Sequence[Sequence[torch.Tensor]] | None
) -> int | Sequence[Sequence[torch.Tensor]] | None:
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(f"groups={groups!r} must be an integer greater than 0, or a list of lists of parameters.")
    owned = {id(param) for group in optimizer.param_groups for param in group["params"]}
    seen: set[int] = set()
    for param in (param for group in groups for param in group):
        if not isinstance(param, torch.Tensor):
            raise ValueError(f"groups must hold lists of parameters, not {param!r}.")
        if id(param) in seen:
            raise ValueError(
                f"groups has a parameter of shape {tuple(param.shape)} twice; each may be in one group only."
            )
        if id(param) not in owned:
            raise ValueError(
                f"groups has a tensor of shape {tuple(param.shape)} that is not a parameter of the optimizer."
            )
        seen.add(id(param))
    return groups
