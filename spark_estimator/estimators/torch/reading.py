"""Reads files of PyTorch by its restricted unpickler, and reports what it refuses, without its advice to allow it."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spark_estimator.checkpoint.restricted import load_restricted
from spark_estimator.errors import DataError


class RefusedObjectsError(DataError):
    """A file names classes or functions that are not known: to read it could run code."""


def read(file: Path, known: Sequence[Any] = (), *, trust: bool = False) -> Any:
    """Read a file of ``torch.save``.

    Args:
        known: classes and functions that it may name, besides those that PyTorch itself allows.
        trust: it may name any, and run code.

    Raises:
        RefusedObjectsError: it names others; the message has their names.
        DataError: it is none of PyTorch's files, or damaged.
    """
    try:
        if not zipfile.is_zipfile(file):
            raise DataError(
                f"{file} is no file of PyTorch: {file.stat().st_size} bytes, which are no whole zip archive."
            )
        with torch.serialization.safe_globals(list(known)):
            return torch.load(file, weights_only=False) if trust else load_restricted(file)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise RefusedObjectsError(describe_error(error)) from error
    except Exception as error:
        raise DataError(f"{file} is no file of PyTorch that could be read: {describe_error(error)}") from error


def load_module(value: Any) -> nn.Module:
    """Return a module that Horovod has saved: itself, or a stream of TorchScript."""
    module: nn.Module = torch.jit.load(io.BytesIO(value.getvalue())) if isinstance(value, io.BytesIO) else value
    return module


def describe_error(error: Exception) -> str:
    """Return an error in a line. PyTorch's own advice to remove the restriction is not repeated."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, pickle.UnpicklingError):
        telling = next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), type(error).__name__)
        return telling.partition(" Please use ")[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
