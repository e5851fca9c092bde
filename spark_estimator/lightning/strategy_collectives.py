"""Lightning's collectives: reduce, gather, broadcast, wait, decide together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set

if TYPE_CHECKING:
    _Base = Any
else:
    _Base = object

#: What Lightning and torch.distributed call a reduction -> what it is here.
_OPS = {"mean": hvd.Average, "avg": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}


class HorovodCollectives(_Base):
    """Lightning's own names and signatures. All ranks call them, in the same order; without other ranks they change
    nothing.

    Attributes:
        uneven_lengths: of the loader that is being evaluated: each rank's number of batches; empty if they are equal.
        in_evaluation_step: whether ``validation_step`` or ``test_step`` is running.
    """

    uneven_lengths: tuple[int, ...] = ()
    in_evaluation_step = False

    @property
    def is_alone(self) -> bool:
        """Return whether no other ranks can answer: there is one rank, or this rank is ending with an exception.

        The others do not know that yet, and will not answer: callbacks that save a checkpoint then must not wait.
        """
        if not context.is_initialized() or context.size() == 1:
            return True
        trainer = getattr(self.lightning_module, "_trainer", None)
        status = None if trainer is None else trainer.state.status
        return getattr(status, "value", status) == "interrupted"

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a tensor over all ranks to a new one; return other values unchanged.

        Args:
            tensor: of any shape, the same on all ranks. The mean of whole numbers is float32.
            group: None, or a process set.
            reduce_op: "mean", "sum", "min", "max", "product", or as torch.distributed names them.

        Raises:
            ValueError: another operation, or a group of torch.distributed.
        """
        operation = _find_operation(reduce_op)
        process_set = _find_process_set(group, "reduce")
        if not isinstance(tensor, torch.Tensor) or self.is_alone:
            return tensor
        self._check_may_talk("reduce")
        if operation == hvd.Average and not tensor.is_floating_point():
            tensor = tensor.float()
        with torch.no_grad():
            return hvd.allreduce(tensor.detach(), op=operation, process_set=process_set)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """Gather all ranks' tensors. Raises ValueError: a group of torch.distributed; MismatchError: the shapes differ.

        Args:
            tensor: [*shape], the same shape on all ranks.
            group: None, or a process set.
            sync_grads: whether gradients flow back; that of each rank's tensor is the sum over all ranks' results.

        Returns:
            [size, *shape]; alone the tensor itself.
        """
        process_set = _find_process_set(group, "all_gather")
        if self.is_alone:
            return tensor
        self._check_may_talk("all_gather")
        if not sync_grads or not tensor.requires_grad:
            return hvd.allgather(tensor.detach().unsqueeze(0), process_set=process_set)
        # Horovod's gradient of an allgather is an average, Lightning's a sum.
        size = context.size() if process_set is global_process_set else len(process_set.ranks or ())
        return hvd.allgather(_Scaled.apply(tensor, size).unsqueeze(0), process_set=process_set)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank `src`, on all ranks."""
        if self.is_alone:
            return obj
        self._check_may_talk("broadcast")
        return hvd.broadcast_object(obj, root_rank=src)

    def barrier(self, name: str | None = None) -> None:
        """Return when all ranks have called it."""
        if not self.is_alone:
            self._check_may_talk("barrier")
            hvd.barrier()

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all ranks decided so; with ``all=False``, whether any did."""
        if self.is_alone:
            return bool(decision)
        self._check_may_talk("reduce_boolean_decision")
        return bool(hvd.allreduce(torch.tensor(int(decision)), op=hvd.Min if all else hvd.Max).item())

    def _check_may_talk(self, what: str) -> None:
        """Raise, on all ranks, where some would wait in an evaluation step for others that have none."""
        if self.in_evaluation_step and self.uneven_lengths:
            lengths = ", ".join(f"rank {rank}: {length}" for rank, length in enumerate(self.uneven_lengths))
            raise RuntimeError(
                f"Rank {context.rank()}: {what}() in an evaluation step, while ranks have different numbers of "
                f"batches ({lengths}): some ranks would wait forever. Log with on_epoch=True and on_step=False, "
                "gather in on_validation_epoch_end, or give all ranks the same number of batches (as Lightning's "
                "sampler does)."
            )


def _find_operation(reduce_op: Any) -> int:
    name = str(reduce_op).rpartition(".")[2].lower()  # ReduceOp.SUM, RedOpType.SUM
    if name == "none":
        return hvd.Average
    if name not in _OPS:
        raise ValueError(f"reduce_op={reduce_op!r} must be one of {', '.join(_OPS)}.")
    return _OPS[name]


def _find_process_set(group: Any, what: str) -> ProcessSet:
    if isinstance(group, ProcessSet):
        return group
    if group is None or group is getattr(torch.distributed.group, "WORLD", None):
        return global_process_set
    raise ValueError(
        f"{what}(group={group!r}): this strategy does not use torch.distributed groups. Pass None for all ranks, or a "
        "spark_estimator.torch.ProcessSet."
    )


class _Scaled(torch.autograd.Function):
    """A tensor whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None
