"""Restores the objects of all ranks from a checkpoint: each rank reads a share, and the ranks exchange them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from spark_estimator.checkpoint.random_state import set_random_state
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import folders, reading
from spark_estimator.extensions.checkpoint.index import Extent, Saved, parse_index
from spark_estimator.extensions.checkpoint.state import find_own_buffers, join_leaves, load_into
from spark_estimator.store import FilesystemStore
from spark_estimator.torch import allgather_object, broadcast_, broadcast_object, is_initialized

_log = logging.getLogger(__name__)
Wanted = tuple[Saved, Extent]
Pieces = Mapping[tuple[str, tuple[int, ...]], Any]  # by key and position


def restore(
    store: FilesystemStore,
    root: str,
    step: int | None,
    objects: Mapping[str, Any],
    local: Mapping[str, Any],
    rank: int,
    ranks: int,
) -> int:
    """Restore everything; see `Checkpointer.restore`. A collective on ranks.

    Args:
        root: the folder of the checkpoints.
        objects, local: by their names.
    """
    source = _find(store, root, step, rank)
    if source is None:
        return 0
    path, text = source
    index = parse_index(text, f"{path}/{folders.METADATA}")
    by_name: dict[str, list[Saved]] = {}
    for saved in index.values():
        by_name.setdefault(str(saved.path[0]), []).append(saved)
    _check(path, by_name, objects)
    chosen = [saved for name in (*objects, "step") for saved in by_name.get(name, [])]
    extents = [(saved, extent) for saved in chosen for extent in saved.extents]
    shares = divide_extents(extents, ranks)
    saved_ranks = len(by_name.get("ranks", []))
    own_share = list(shares[rank])
    own_key = f"ranks.{rank}"
    if saved_ranks == ranks:
        own_share += [(index[own_key], extent) for extent in index[own_key].extents]
    pieces = _read(store, path, own_share)
    rank_state = pieces.pop((own_key, ()), None)
    values = _exchange_pieces(shares, pieces, rank) if ranks > 1 else _join_pieces(shares[0], pieces)
    for name, value in objects.items():
        if name not in by_name:  # it has no state
            continue
        load_into(value, join_leaves([(saved.path[1:], values[saved.key]) for saved in by_name[name]]))
    _restore_own(rank_state, objects, local, saved_ranks, ranks, rank)
    return int(values["step"])


def divide_extents(extents: Sequence[Wanted], ranks: int) -> list[list[Wanted]]:
    """Return [ranks] the extents that each rank reads: equally many bytes, up to an extent, in the order of the
    files.
    """
    ordered = sorted(extents, key=lambda each: (each[1].file, each[1].offset))
    total = sum(extent.length for _, extent in ordered)
    result: list[list[Wanted]] = [[] for _ in range(ranks)]
    done = 0
    for saved, extent in ordered:
        result[min(ranks - 1, (done + extent.length // 2) * ranks // max(1, total))].append((saved, extent))
        done += extent.length
    return result


def _find(store: FilesystemStore, root: str, step: int | None, rank: int) -> tuple[str, bytes] | None:
    result: tuple[str, bytes] | str | None = None
    if rank == 0:
        try:
            result = reading.find(store, root, step)
        except DataError as error:
            result = str(error)
        except Exception as error:  # its class depends on the store
            result = (
                f"{root} cannot be read on rank 0 (host {socket.gethostname()}): {type(error).__name__}: {error}. "
                "Whether it has a checkpoint is not known."
            )
    if is_initialized():
        result = broadcast_object(result, name="checkpoint.found")
    if isinstance(result, str):
        raise DataError(result)
    return result


def _check(path: str, by_name: Mapping[str, Sequence[Saved]], objects: Mapping[str, Any]) -> None:
    """Raise DataError if the checkpoint does not fit, before anything is read or changed."""
    lacking = [name for name in objects if name not in by_name and objects[name].state_dict()]
    if lacking:
        names = sorted(set(by_name) - {"step", "ranks"})
        raise DataError(f"{path} has no {', '.join(lacking)}; it has {', '.join(names)}.")
    for name, value in objects.items():
        if not isinstance(value, torch.nn.Module):
            continue
        saved_shapes = {".".join(map(str, saved.path[1:])): saved.shape for saved in by_name.get(name, ())}
        present = {key: tuple(item.shape) for key, item in value.state_dict().items() if isinstance(item, torch.Tensor)}
        for key in sorted(saved_shapes.keys() | present.keys()):
            here, saved_shape = present.get(key), saved_shapes.get(key)
            if here != saved_shape and (key in present or saved_shape):
                raise DataError(
                    f"{path} does not fit: {name}.{key} has the shape {_describe_shape(saved_shape)} there and "
                    f"{_describe_shape(here)} in the model."
                )


def _describe_shape(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else str(list(shape))


def _read(store: FilesystemStore, path: str, extents: Sequence[Wanted]) -> dict[tuple[str, tuple[int, ...]], Any]:
    """Return the values that this rank reads, by key and position. All ranks raise if one cannot. A collective."""
    result, problem = {}, ""
    try:
        for saved, extent, value in reading.read(store, path, extents):
            result[saved.key, extent.first] = value
    except DataError as error:
        problem = str(error)
    except Exception as error:  # its class depends on the store
        problem = f"{path} cannot be read on host {socket.gethostname()}: {type(error).__name__}: {error}"
    if is_initialized():
        problems = allgather_object(problem, name="checkpoint.read")
        problem = next((f"rank {rank}: {text}" for rank, text in enumerate(problems) if text), "")
    if problem:
        raise DataError(problem)
    return result


def _join_pieces(extents: Sequence[Wanted], pieces: Pieces) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for saved, extent in extents:
        reading.fill_tensor(values, saved, extent, pieces[saved.key, extent.first])
    return values


def _exchange_pieces(shares: Sequence[Sequence[Wanted]], pieces: Pieces, rank: int) -> dict[str, Any]:
    """Return all values, from the ranks that have read them. A collective."""
    values: dict[str, Any] = {}
    for root, extents in enumerate(shares):
        tensors = [(saved, extent) for saved, extent in extents if saved.dtype is not None]
        objects = [(saved, extent) for saved, extent in extents if saved.dtype is None]
        if objects:
            sent = [pieces[saved.key, extent.first] for saved, extent in objects] if rank == root else None
            received = broadcast_object(sent, root, name="checkpoint.objects")
            values.update({saved.key: value for (saved, _), value in zip(objects, received, strict=True)})
        if tensors:
            _broadcast(tensors, pieces, root, rank, values)
    return values


def _broadcast(tensors: Sequence[Wanted], pieces: Pieces, root: int, rank: int, values: dict[str, Any]) -> None:
    sizes = [torch.Size(extent.sizes).numel() * (saved.dtype or torch.uint8).itemsize for saved, extent in tensors]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu")
    if rank == root:
        flat = [pieces[saved.key, extent.first].reshape(-1).view(torch.uint8) for saved, extent in tensors]
        torch.cat(flat, out=buffer)
    received = broadcast_(buffer, root, name="checkpoint.tensors") if len(buffer) else buffer
    offset = 0
    for (saved, extent), size in zip(tensors, sizes, strict=True):
        # A copy: a type has to begin at a multiple of its size.
        piece = received[offset : offset + size].clone().view(saved.dtype or torch.uint8).reshape(extent.sizes)
        reading.fill_tensor(values, saved, extent, piece)
        offset += size


def _restore_own(
    rank_state: Any, objects: Mapping[str, Any], local: Mapping[str, Any], saved_ranks: int, ranks: int, rank: int
) -> None:
    if rank_state is None:
        if rank == 0:
            _log.warning(
                "the checkpoint is of %d ranks, and there are %d: each takes rank 0's buffers and keeps its own random "
                "numbers%s", saved_ranks, ranks, f" and its {', '.join(local)}" if local else "",
            )  # fmt: skip
        return
    for name, value in objects.items():
        for key, buffer in find_own_buffers(value).items():
            saved = rank_state["buffers"].get(f"{name}.{key}")
            if saved is not None:
                buffer.copy_(saved)
    for name, value in local.items():
        if name in rank_state["local"]:
            load_into(value, rank_state["local"][name])
    set_random_state(rank_state["random"])
