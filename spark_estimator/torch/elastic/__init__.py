"""Elastic training in PyTorch: ``hvd.elastic.run``, ``TorchState``, ``ElasticSampler``.

::

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            for number, (inputs, targets) in enumerate(loader):
                ...                                      # one step of state.model and state.optimizer
                state.sampler.record_batch(number, len(inputs))
                state.commit()
            state.sampler.set_epoch(state.epoch + 1)     # at the end of an epoch

    train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0))

See ``spark_estimator.elastic`` for what happens when a rank is lost or joins. Between ``hvd.init()`` and `train`
there must be no collectives: a process that comes later would wait in them for ranks that are long past them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spark_estimator.elastic import HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, rejoin, run_fn
from spark_estimator.torch.elastic.sampler import ElasticSampler
from spark_estimator.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]

ValueT = TypeVar("ValueT")


def run(func: Callable[..., ValueT]) -> Callable[..., ValueT]:
    """Decorates ``func(state, ...)``, a training that continues when the job loses or gains a rank.

    Args:
        func: gets a `State`, usually a `TorchState`, and takes up its work from there.

    Returns:
        A function that is called like `func`, after ``hvd.init()``, on all ranks, and returns what that returns.

    Raises:
        HorovodInternalError: the job is not elastic (``horovodrun --min-np`` starts one), or the same failure repeats.
    """
    return run_fn(func, rejoin)
