"""Lists checkpoints, and reads their values and verifies checksums, from no more of a file than needed."""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from spark_estimator.checkpoint.restricted import load_restricted
from spark_estimator.errors import DataError
from spark_estimator.extensions.checkpoint import folders
from spark_estimator.extensions.checkpoint.index import Extent, Saved, parse_index
from spark_estimator.extensions.checkpoint.state import join_leaves
from spark_estimator.store import FilesystemStore, Store

# An attribute of MS-DOS in a zip file.
_IS_FOLDER = 0x10


def complete_steps(folder: str | Store) -> list[int]:
    """Return the steps whose checkpoints in a folder are complete, in ascending order.

    Args:
        folder: as of `Checkpointer`.
    """
    store = open_store(folder)
    root = store.prefix_path
    source = folders.list_folders(store, root)
    return sorted({each.step for each in source if folders.is_complete(store, root, each)})


def load(folder: str | Store, step: int | None = None, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the state in a checkpoint, as dicts and lists of tensors in host memory; keys of dicts are text.

    For inference, or to look into it; a training uses `Checkpointer.restore`. No collective.

    Args:
        folder: as of `Checkpointer`.
        step: of the training; None: the last complete checkpoint.
        names: only the objects of these names are read; None: all, and the step.

    Raises:
        DataError: there is none, it is damaged, or it has no object of such a name.
    """
    store = open_store(folder)
    source = find(store, store.prefix_path, step)
    if source is None:
        raise DataError(f"{store.prefix_path} has no complete checkpoint.")
    path, text = source
    index = parse_index(text, f"{path}/{folders.METADATA}")
    saved_names = {str(saved.path[0]) for saved in index.values() if saved.path[0] != "ranks"}
    if missing := sorted(set(names or ()) - saved_names):
        raise DataError(
            f"{path} has no object named {', '.join(map(repr, missing))}. It has "
            f"{', '.join(map(repr, sorted(saved_names)))}."
        )
    chosen = [
        saved for saved in index.values() if saved.path[0] != "ranks" and (names is None or saved.path[0] in names)
    ]
    extents = [(saved, extent) for saved in chosen for extent in saved.extents]
    values: dict[str, Any] = {}
    for saved, extent, value in read(store, path, extents):
        fill_tensor(values, saved, extent, value)
    return dict(join_leaves([(saved.path, values[saved.key]) for saved in chosen]) or {})


def find(store: FilesystemStore, root: str, step: int | None) -> tuple[str, bytes] | None:
    """Return the folder and the ``.metadata`` of a complete checkpoint; None if there is none and `step` is None.

    Args:
        step: None: the newest.

    Raises:
        DataError: there is none of this step.
        Exception: the store cannot be read; the class of the error depends on the store.
    """
    steps = []
    for folder in folders.list_folders(store, root):
        steps.append(folder.step)
        if step in (None, folder.step):
            path = posixpath.join(root, folder.name)
            try:
                return path, store.read(posixpath.join(path, folders.METADATA))
            except FileNotFoundError:
                continue
    if step is not None:
        others = [str(each) for each in sorted(set(steps)) if each != step]
        raise DataError(
            f"{root} has no complete checkpoint of step {step}; of other steps: {', '.join(others) or 'none'}."
        )
    return None


def read(
    store: FilesystemStore, path: str, extents: Sequence[tuple[Saved, Extent]]
) -> Iterator[tuple[Saved, Extent, Any]]:
    """Yield the values of some extents, file by file.

    Raises:
        DataError: one is damaged, or holds what cannot be read without running code.
        Exception: a file cannot be read; the class of the error depends on the store.
    """
    by_file: dict[str, list[tuple[Saved, Extent]]] = {}
    for saved, extent in extents:
        by_file.setdefault(extent.file, []).append((saved, extent))
    for file, entries in by_file.items():
        with store.open(posixpath.join(path, file), "rb") as stream:
            for saved, extent in sorted(entries, key=lambda each: each[1].offset):
                stream.seek(extent.offset)
                yield saved, extent, _load_value(stream.read(extent.length), f"{path}/{file}: {saved.key}", extent)


def fill_tensor(values: dict[str, Any], saved: Saved, extent: Extent, value: Any) -> None:
    """Put a value that was read into its tensor."""
    if saved.dtype is None:
        values[saved.key] = value
        return
    if saved.key not in values:
        values[saved.key] = torch.empty(saved.shape, dtype=saved.dtype)
    target = values[saved.key]
    for dimension, (first, size) in enumerate(zip(extent.first, extent.sizes, strict=True)):
        target = target.narrow(dimension, first, size)
    target.copy_(value)


def _load_value(content: bytes, name: str, extent: Extent) -> Any:
    flaw = ""
    if len(content) < extent.length:
        flaw = f"of {extent.length} bytes there are {len(content)}"
    else:
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                broken = archive.testzip()
                # torch leaves the memory of such an entry as it is.
                folder = any(info.external_attr & _IS_FOLDER for info in archive.infolist())
            flaw = "its checksum is another" if broken is not None else "an entry is a folder" if folder else ""
        except Exception as error:  # a damaged archive raises any error
            flaw = f"{type(error).__name__}: {error}"
    if flaw:
        raise DataError(f"{name} is damaged: {flaw}.")
    try:
        return load_restricted(io.BytesIO(content), map_location="cpu")
    except Exception as error:
        raise DataError(f"{name} cannot be read without running code: {str(error).splitlines()[0]}") from error


def open_store(folder: str | Store) -> FilesystemStore:
    """Return the store whose `prefix_path` is the folder.

    Raises:
        TypeError: it is neither a path, a URL nor a `FilesystemStore`.
    """
    store = Store.create(folder) if isinstance(folder, str) else folder
    if not isinstance(store, FilesystemStore):
        raise TypeError(f"folder must be a path, a URL or a FilesystemStore; got {type(store).__qualname__}.")
    return store
