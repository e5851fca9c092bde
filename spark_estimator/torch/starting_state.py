"""Makes all ranks start from one rank's parameters and optimizer state.

Both functions first let the ranks compare what they are about to receive (names, shapes, types), so that different
models end in an error that names the first difference; then all tensors are sent at once.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator.collectives import context
from spark_estimator.collectives.consistency import check_identical
from spark_estimator.collectives.objects import broadcast_object
from spark_estimator.collectives.ops import to_whole_number
from spark_estimator.torch.collectives import ops
from spark_estimator.torch.collectives.memory import check_parameter, describe_call, overlaps_itself
from spark_estimator.torch.collectives.pending import synchronize
from spark_estimator.torch.optimizer.optimizer import DistributedMethods, find_user_class


def broadcast_parameters(params: Mapping[str, Any] | Sequence[Any], root_rank: int) -> None:
    """Copy the root's parameters and buffers into those of every other rank, in place. Collective.

    Args:
        params: ``model.state_dict()``, or a list of tensors or of (name, tensor). Entries with names may have another
            order on each rank. Entries that are no tensors (a module's extra state) are left as they are.
        root_rank: whose values everyone gets.

    Raises:
        ValueError: `params` has another type, for example an iterator: it would be empty the second time; or one of
            them holds nothing that can be sent: it is complex, sparse, on device 'meta'. Nothing was sent.
        MismatchError: the ranks' parameters differ in name, shape or type; the first difference is named.
    """
    root = _check_root(root_rank, "broadcast_parameters")
    tensors = [(name, value) for name, value in _list_pairs(params) if isinstance(value, torch.Tensor)]
    for name, tensor in tensors:
        check_parameter(name, tensor, "broadcast_parameters")
        if overlaps_itself(tensor):
            raise ValueError(
                f"{describe_call('broadcast_parameters')}: elements of {reprlib.repr(name)} share memory (shape "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}) and can't be written to; use tensor.contiguous()."
            )
    lines = [f"{name}: shape {tuple(tensor.shape)}, {tensor.dtype}" for name, tensor in tensors]
    check_identical(lines, name="broadcast_parameters", subject="the parameters to broadcast")
    _broadcast_all(
        [
            (f"broadcast_parameters.{number}.{_to_sendable(name)}", tensor)
            for number, (name, tensor) in enumerate(tensors)
        ],
        root,
    )


def _to_sendable(name: str) -> str:
    """Return a parameter's name as far as the name of a request may contain it."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")[:200]


def _list_pairs(params: object) -> list[tuple[str, object]]:
    """Return names and values, in an order that is the same on all ranks. Raises ValueError for what has none."""
    if isinstance(params, Mapping):
        return sorted(((str(name), value) for name, value in params.items()), key=operator.itemgetter(0))
    if not isinstance(params, (list, tuple)):
        raise ValueError(
            f"broadcast_parameters: model.state_dict() or a list is needed, not {reprlib.repr(params)}; wrap an "
            "iterator such as model.named_parameters() in list(...)."
        )
    pairs: list[tuple[str, object]] = []
    for number, entry in enumerate(params):
        if isinstance(entry, torch.Tensor):
            pairs.append((str(number), entry))
        elif isinstance(entry, tuple) and len(entry) == 2:
            pairs.append((str(entry[0]), entry[1]))
        else:
            raise ValueError(
                "broadcast_parameters takes a list of tensors, or of tuples (name, tensor); entry "
                f"{number} is neither: {reprlib.repr(entry)}."
            )
    if all(isinstance(entry, tuple) for entry in params) and len({name for name, _ in pairs}) == len(pairs):
        pairs.sort(key=operator.itemgetter(0))
    return pairs


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the root's optimizer state and options (learning rate, betas...). Collective.

    Nothing is stepped or counted for it: a rank without state gets what the root has, and where the root has none
    the others lose theirs.

    Args:
        optimizer: wrapped or not, with the same parameters on all ranks.
        root_rank: the rank whose state all get; for example the one that has loaded a checkpoint.
        model: not needed; Horovod looks for sparse embeddings in it.

    Raises:
        ValueError: the optimizer is an LBFGS, whose state cannot be separated from the path that led to it.
        MismatchError: the ranks' parameter groups differ; the first difference is named.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"broadcast_optimizer_state: the optimizer itself is needed, not {reprlib.repr(optimizer)}: its state "
            "may be empty on other ranks."
        )
    if issubclass(find_user_class(optimizer), torch.optim.LBFGS):
        raise ValueError(
            f"{describe_call('broadcast_optimizer_state')}: the state of torch.optim.LBFGS cannot be broadcast: it "
            "depends on this rank's earlier evaluations. Broadcast the parameters, and create a new LBFGS on all ranks."
        )
    root = _check_root(root_rank, "broadcast_optimizer_state")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if param.requires_grad:
                check_parameter(f"group {number}, parameter {position}", param, "broadcast_optimizer_state")
    # Ranks whose optimizers have the same parameters in another order exchange gradients by these names.
    names = optimizer._distributed.names if isinstance(optimizer, DistributedMethods) else {}
    lines = [find_user_class(optimizer).__name__] + [
        f"group {number}: parameter {names.get(id(param), '')} of shape {tuple(param.shape)}, {param.dtype}"
        for number, group in enumerate(optimizer.param_groups)
        for param in group["params"]
    ]
    check_identical(lines, name="broadcast_optimizer_state", subject="the optimizer whose state to broadcast")

    position_of = {id(param): number for number, param in enumerate(params)}
    tensors: list[torch.Tensor] = []
    skeleton: Any = None
    fresh = not optimizer.state
    if context.rank() == root:
        own_state: dict[Any, Any] = optimizer.state
        state = [
            (
                position_of[id(key)] if isinstance(key, torch.Tensor) else _OtherKey(key),
                _extract_tensors(value, tensors),
            )
            for key, value in own_state.items()
        ]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        skeleton = (state, _extract_tensors(groups, tensors))
    state, groups = broadcast_object(skeleton, root, name="broadcast_optimizer_state.skeleton")
    first = params[0] if params else None
    if context.rank() != root:
        optimizer.state.clear()
        for key, value in state:
            owner = key.key if isinstance(key, _OtherKey) else params[key]
            like = owner if isinstance(key, int) else first
            optimizer.state[owner] = _insert_tensors(value, tensors, like)
        for group, received in zip(optimizer.param_groups, groups, strict=True):
            group.update(_insert_tensors(received, tensors, first))  # a learning rate may be a tensor on the GPU
    _broadcast_all([(f"broadcast_optimizer_state.{number}", tensor) for number, tensor in enumerate(tensors)], root)
    if fresh:
        # As after the step with zero gradients by which Horovod makes the state: programs read .grad before backward().
        for param in params:
            if param.requires_grad and param.grad is None:
                param.grad = torch.zeros_like(param)


@dataclass(frozen=True)
class _TakenTensor:
    """Placeholder for a tensor that was taken out, with its shape and type."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool


@dataclass(frozen=True)
class _OtherKey:
    """A key of ``optimizer.state`` that is no parameter."""

    key: Any


def _extract_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with a `_TakenTensor` for each tensor in its dicts, lists and tuples, which `tensors` gets."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TakenTensor(tuple(value.shape), value.dtype, value.device.type == "cpu")
    if isinstance(value, dict):
        return {key: _extract_tensors(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_extract_tensors(item, tensors) for item in value)
    return value


def _insert_tensors(value: Any, tensors: list[torch.Tensor], param: torch.Tensor | None) -> Any:
    """Undo `_extract_tensors`: new tensors, appended in the same order, still to be filled."""
    if isinstance(value, _TakenTensor):
        device = torch.device("cpu") if value.on_host or param is None else param.device
        tensors.append(torch.zeros(value.shape, dtype=value.dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _insert_tensors(item, tensors, param) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_insert_tensors(item, tensors, param) for item in value)
    return value


def _check_root(root_rank: object, kind: str) -> int:
    root = to_whole_number(root_rank)
    if root is None or root not in range(context.size()):
        raise ValueError(
            f"{describe_call(kind)}: root_rank={root_rank!r} must be one of the ranks 0 to {context.size() - 1}."
        )
    return root


def _broadcast_all(named: Sequence[tuple[str, torch.Tensor]], root_rank: int) -> None:
    handles = [ops.broadcast_async_(tensor, root_rank, name) for name, tensor in named]
    for handle in handles:
        synchronize(handle)
