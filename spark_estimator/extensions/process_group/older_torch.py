"""Additions to process groups if PyTorch is older than 2.13: a refusal of 2.6, and ``new_group`` on all ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from spark_estimator.extensions.process_group.issuing import BACKEND_NAME

_OLDEST = "2.7"
# From this version on torch's new_group calls the default group's on all ranks.
_ASKS_DEFAULT_GROUP = "2.13"
_MARK = "_spark_estimator_prepares"

#: Called with the arguments of torch's ``_new_group_with_tag``: returns the context manager to run on all ranks around
#: the call.
Preparation = Callable[[dict[str, Any]], AbstractContextManager[None]]


def check_version(version: str = torch.__version__) -> None:
    """Raise RuntimeError if the backend does not work with this PyTorch.

    2.6 releases the Python object of an operation before its own C++ code, such as DDP's, waits for it. That wait
    would never end.
    """
    if TorchVersion(version) < _OLDEST:
        raise RuntimeError(
            f"init_process_group({BACKEND_NAME!r}) needs PyTorch {_OLDEST} or later, and this is {version}. Install a "
            'later one; or use init_process_group("gloo"), or spark_estimator.torch, which work with this version.'
        )


def prepare_new_groups(prepare: Preparation, version: str = torch.__version__) -> None:
    """Run torch's ``new_group`` inside `prepare`, if torch does not ask the default group itself. Idempotent.

    Such versions ask the backend only on the ranks of the new group, and an engine for some ranks is made by all.
    """
    original = distributed_c10d._new_group_with_tag
    if TorchVersion(version) >= _ASKS_DEFAULT_GROUP or hasattr(original, _MARK):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make_group_with_tag(*args: Any, **kwargs: Any) -> Any:
        with prepare(signature.bind(*args, **kwargs).arguments):
            return original(*args, **kwargs)

    setattr(make_group_with_tag, _MARK, True)
    distributed_c10d._new_group_with_tag = make_group_with_tag
