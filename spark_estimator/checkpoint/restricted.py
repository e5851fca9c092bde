"""Reads PyTorch's files by its restricted unpickler, which makes objects of known classes only."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.torch_version import TorchVersion

#: The first version without CVE-2026-24747, by which a crafted file corrupts memory also in the restricted unpickler.
_WITHOUT_FAULT = "2.10"


def load_restricted(source: Any, **options: Any) -> Any:
    """Call ``torch.load`` with ``weights_only=True``: no code that the file names is run.

    Warns once where this PyTorch has a known fault. It is not refused: some platforms bring their own PyTorch,
    and most files come from the user's own trainings.

    Args:
        source: as of ``torch.load``.
        options: of ``torch.load``.
    """
    warn_of_fault()
    return torch.load(source, weights_only=True, **options)


@functools.cache
def warn_of_fault(version: str = torch.__version__) -> None:
    """Warn, once, of a PyTorch whose restricted unpickler has a known fault."""
    if TorchVersion(version) < _WITHOUT_FAULT:
        warnings.warn(
            f"PyTorch {version} has a fault (CVE-2026-24747) by which a file that was made for it can run code when it "
            f"is read, also without trust: read only files whose writer you trust, or install PyTorch "
            f"{_WITHOUT_FAULT} or later.",
            stacklevel=3,
        )
