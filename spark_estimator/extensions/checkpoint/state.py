"""The content of a checkpoint: ``state_dict()`` of modules, optimizers and other objects, by name, as torch has it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from spark_estimator.errors import DataError

Path = tuple[str | int, ...]
#: Buffers of a module up to this size may differ between the ranks, and each rank's are kept: sums of a batch
#: normalization. Larger ones are rank 0's.
LARGEST_OWN_BUFFER = 1 << 20
#: Names of a checkpoint's own.
RESERVED = ("step", "ranks")


@dataclass(frozen=True)
class StateEntry:
    """One value that is equal on all ranks, or of which rank 0's is saved."""

    key: str  # its name in the whole state, as `torch.distributed.checkpoint` names it
    path: Path
    value: Any
    of_first: bool = False  # rank 0 writes it, as other ranks may have another value


def collect_entries(objects: Mapping[str, Any]) -> list[StateEntry]:
    """Return the state of all objects, in their order.

    Raises:
        DataError: of a tensor that cannot be written in pieces, or of two values of the same name.
    """
    result: list[StateEntry] = []
    seen: set[str] = set()
    for name, value in objects.items():
        buffers = find_own_buffers(value)
        for path, leaf in iterate_leaves((name,), value.state_dict()):
            key = ".".join(map(str, path))
            if key in seen:
                raise DataError(f"two values of the state have the name {key!r}: give the objects other names.")
            seen.add(key)
            _check(key, leaf)
            first = not isinstance(leaf, torch.Tensor) or ".".join(map(str, path[1:])) in buffers
            result.append(StateEntry(key, path, leaf, first))
    return result


def iterate_leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the values within dicts and lists; lists are entered only if they hold tensors or dicts, as in torch's
    layout.
    """
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from iterate_leaves((*path, str(key)), item)
    elif isinstance(value, list) and _holds_more(value):
        for number, item in enumerate(value):
            yield from iterate_leaves((*path, number), item)
    else:
        yield path, value


def find_own_buffers(value: Any) -> dict[str, torch.Tensor]:
    """Return the buffers of a module in which ranks may differ, by name; none of any other object."""
    if not isinstance(value, torch.nn.Module):
        return {}
    saved = value.state_dict().keys()
    return {
        name: buffer.detach()
        for name, buffer in value.named_buffers()
        if name in saved and buffer.numel() * buffer.element_size() <= LARGEST_OWN_BUFFER
    }


def join_leaves(values: Sequence[tuple[Path, Any]]) -> Any:
    """Return the dicts and lists that `iterate_leaves` has taken apart. Keys are text."""
    root: Any = None
    for path, value in values:
        if not path:
            return value
        root = root if root is not None else ([] if isinstance(path[0], int) else {})
        node = root
        for key, following in itertools.pairwise(path):
            node = _get_or_insert(node, key, [] if isinstance(following, int) else {})
        _get_or_insert(node, path[-1], value)
    return root


def load_into(value: Any, state: Any) -> None:
    """Load an object's state, with the object's own keys."""
    state = _restore_keys(state, value.state_dict())
    if isinstance(value, torch.optim.Optimizer):
        state = dict(state)
        state["state"] = {_to_number(key): item for key, item in state.get("state", {}).items()}
    value.load_state_dict(state)


def check_names(names: Sequence[str], objects: Sequence[Any], where: str) -> None:
    """Raise unless names and objects can be in a checkpoint.

    Raises:
        TypeError: an object has no ``state_dict()`` or ``load_state_dict()``.
        ValueError: a name is one of the checkpoint's own.
    """
    for name, value in zip(names, objects, strict=True):
        if name in RESERVED or "." in name:
            raise ValueError(f"{where} has the name {name!r}: names have no dot, and {RESERVED} are the checkpoint's.")
        lacking = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(value, method, None))]
        if lacking:
            raise TypeError(f"{where} {name!r} is a {type(value).__qualname__} without {' and '.join(lacking)}().")


def collect_addresses(optimizers: Sequence[Any]) -> set[int]:
    """Return the addresses of the memory that only the optimizers' steps change: parameters and states."""
    result = set()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            result |= {parameter.data_ptr() for parameter in group["params"]}
        for state in optimizer.state.values():
            result |= {item.data_ptr() for item in state.values() if isinstance(item, torch.Tensor)}
    return result


def _holds_more(values: Sequence[Any]) -> bool:
    return any(
        isinstance(item, (torch.Tensor, Mapping)) or (isinstance(item, list) and _holds_more(item)) for item in values
    )


def _check(key: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        return
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise DataError(
            f"{key} is a {type(value).__qualname__}: only plain tensors can be written. Of an FSDP or DTensor model "
            "use torch.distributed.checkpoint."
        )
    if value.layout != torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise DataError(f"{key} is a tensor of layout {value.layout}: only dense tensors can be written.")


def _get_or_insert(node: Any, key: str | int, new: Any) -> Any:
    if isinstance(key, int):
        while len(node) <= key:
            node.append(None)
        if node[key] is None:
            node[key] = new
    else:
        node.setdefault(key, new)
    return node[key]


def _restore_keys(state: Any, template: Any) -> Any:
    """Return the state with the template's keys where these are no text."""
    if isinstance(state, Mapping) and isinstance(template, Mapping):
        keys = {str(key): key for key in template}
        return {
            keys.get(key, key): _restore_keys(item, template.get(keys.get(key, key))) for key, item in state.items()
        }
    if isinstance(state, list) and isinstance(template, list):
        others: list[Any] = [*template, *[None] * (len(state) - len(template))]
        return [_restore_keys(item, other) for item, other in zip(state, others, strict=False)]
    return state


def _to_number(key: Any) -> Any:
    return int(key) if isinstance(key, str) and re.fullmatch(r"\d+", key) else key
