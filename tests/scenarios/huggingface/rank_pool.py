"""Ranks that have Hugging Face's libraries imported, and one process without a job, to compare with."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_estimator.compat.importer import find_autoload_path
from tests import rank_pool

#: What a Hugging Face program may not do in a test.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_DISABLED": "1"}


def environment() -> dict[str, str]:
    path = [str(Path(__file__).parents[3]), *filter(None, sys.path), find_autoload_path()]
    return {**OFFLINE, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


class RankPool(rank_pool.RankPool):
    """`size` ranks; a pool of one is a plain process. A program gets the folder and, in ranks, a backend."""

    def __init__(self, size: int) -> None:
        super().__init__(size, _call if size > 1 else _call_alone, environment())

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 180) -> list[Any]:
        """As the other pools; imports that are still to be made take long on a busy machine."""
        return super().run(function, *args, timeout=timeout)


def ready(*sizes: int) -> dict[int, RankPool]:
    """Pools by size, whose ranks have imported what takes long."""
    pools = {size: RankPool(size) for size in sizes}
    threads = [
        threading.Thread(target=pool.run, args=(_imported, "", "gloo"), kwargs={"timeout": 180})
        for pool in pools.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return pools


def _imported(folder: str, *_: str) -> None:
    import accelerate
    import datasets
    import peft
    import transformers

    assert all(hasattr(module, "__version__") for module in (accelerate, datasets, peft, transformers))
    assert transformers.Trainer is not None


def _call(function: Callable[..., Any], rank: int, folder: str, backend: str, *args: Any) -> Any:
    import torch.distributed as dist

    from spark_estimator.collectives import context, rendezvous
    from spark_estimator.collectives.torch_variables import make_torch_variables

    current = rendezvous.find_current()
    assert current is not None
    os.environ.update(make_torch_variables(current))
    context.init()
    try:
        if backend != "gloo":  # which Hugging Face's libraries choose themselves
            dist.init_process_group(backend)
        return function(folder, *args)
    finally:
        _reset()
        if dist.is_initialized():
            dist.destroy_process_group()
        context.shutdown()


def _call_alone(function: Callable[..., Any], rank: int, folder: str, *args: Any) -> Any:
    try:
        return function(folder, *args)
    finally:
        _reset()


def _reset() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
