"""What torch calls at its import in workers: ``env://`` and the backend "spark_estimator" load this package when used.

Only workers, and what they start, have this folder in their path. Torch finds the entry point beside this file, in the
group ``torch.backends``; TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns that off.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

_CREATION = "spark_estimator.extensions.process_group.creation"
_BACKEND = "spark_estimator"
_ACCELERATE_ON_CPU = "ACCELERATE_USE_CPU"


def register() -> None:
    """Make both known to torch, whose import is about to end. Cheap: what they need is imported at their first use."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or importlib.util.find_spec(_BACKEND) is None:
        return
    if _BACKEND in distributed.Backend.backend_list:
        return
    choose_device_for_accelerate(sys.modules["torch"])
    # The function of that name hides the module.
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    otherwise = handlers["env"]

    def rendezvous(url: str, **options: Any) -> Iterator[Any]:
        yield from importlib.import_module(_CREATION).wrap_rendezvous(otherwise)(url, **options)

    def create(*arguments: Any) -> Any:
        return importlib.import_module(_CREATION).create(*arguments)

    handlers["env"] = rendezvous
    distributed.Backend.register_backend(_BACKEND, create, extended_api=True, devices=["cpu"])


def choose_device_for_accelerate(torch: Any) -> None:
    """Set Accelerate's variable, which the Trainer also reads, if a rank has no GPU, as ``accelerate launch --cpu``
    does.

    Without it, both train alone on each rank, without a message. The user's own value is kept.
    """
    if not _has_accelerator(torch):
        os.environ.setdefault(_ACCELERATE_ON_CPU, "true")


def _has_accelerator(torch: Any) -> bool:
    # NVIDIA's management library counts the GPUs: CUDA is not started, so that the rank can still fork.
    if torch.cuda.device_count() > 0:
        return True
    try:
        kind = torch.accelerator.current_accelerator()
    except (AttributeError, RuntimeError):
        return False  # PyTorch 2.6 raises RuntimeError where there is none; older versions have no torch.accelerator
    return kind is not None and bool(torch.get_device_module(kind).device_count())
