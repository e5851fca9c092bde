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
there must be no collectives: a process that joins later would wait in them for ranks that have long completed them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

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


@overload
def run(func: Callable[..., ValueT]) -> Callable[..., ValueT]: ...
@overload
def run(*, mode: str) -> Callable[[Callable[..., ValueT]], Callable[..., ValueT]]: ...
def run(func: Callable[..., Any] | None = None, *, mode: str = "commit") -> Any:
    """Decorate ``func(state, ...)``, a training that continues when the job loses or gains a rank.

    Args:
        func: gets a `State`, usually a `TorchState`, and takes up its work from there.
        mode: "commit": a loss costs the work since the last ``state.commit()``, as in Horovod. "step":
            ``@hvd.elastic.run(mode="step")``, with a `TorchState` that has one optimizer: a loss costs the step in
            progress. Call ``state.commit()`` after each ``optimizer.step()``, without a collective in between; it then
            copies no parameters. A new process takes the rank of the lost one, with its random number generators:
            ``spark_estimator.torch.elastic.steps`` has all promises.

    Returns:
        A function that is called like `func`, after ``hvd.init()``, on all ranks, and returns what that returns.

    Raises:
        HorovodInternalError: the same failure repeats.
        PeerLostError: a rank is lost, and the job is not elastic (``horovodrun --min-np`` starts one).
        ValueError: another mode; from the returned function: the state has not one optimizer.
        TypeError: from the returned function: ``mode="step"`` with another state than a `TorchState`.
    """
    if func is None:
        return lambda decorated: run_fn(decorated, rejoin, mode)
    return run_fn(func, rejoin, mode)
