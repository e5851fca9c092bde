"""Batch normalisation over the joint batch of all ranks, for batches that are too small for their own statistics.

Each rank sends the others the number, the mean and the squared deviations of its values per channel, in one small
allgather; the backward pass adds up two sums per channel in one allreduce. The result is that of one process with all
ranks' batches together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from spark_estimator.collectives import context
from spark_estimator.collectives.process_set import ProcessSet, global_process_set
from spark_estimator.torch.collectives.collective import make_allgather, make_allreduce
from spark_estimator.torch.collectives.device import find_common_location
from spark_estimator.torch.collectives.differentiable import make_gradient_name
from spark_estimator.torch.collectives.memory import check_tensor
from spark_estimator.torch.collectives.reductions import Sum

_KIND = "sync_batch_norm"


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm1d``, ``2d`` or ``3d`` with statistics over the batches of all ranks.

    Training is collective, forward and backward: all ranks of the set call it in the same order. Their batches may
    have different sizes; that of some may be empty. With ``track_running_stats=False`` the same holds in eval mode.
    In eval mode with running statistics, on one rank, and in a process without ``init()`` it is plain batch norm.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as for ``torch.nn.BatchNorm2d``.
        process_set: over whose ranks; by default all.
        device, dtype: of its parameters and running statistics.

    Shape: [batch, num_features, *any], the same on output.

    Raises:
        ValueError: on a forward, when the input has less than 2 dimensions; on all ranks, when the joint batch has less
            than 2 values per channel.
        HorovodInternalError: on a forward or backward, when a rank is lost, or the ranks' numbers of channels differ.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: ProcessSet = global_process_set,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises a batch, and in training takes its statistics into the running ones."""
        if (self.training or not self.track_running_stats) and context.is_initialized():
            return self._normalize_jointly(input)
        self._check_input_dim(input)
        return super().forward(input)

    @_disable_dynamo  # a compiled model breaks its graph here, and only where ranks exchange statistics
    def _normalize_jointly(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if context.engine(self.process_set).size == 1:
            return super().forward(input)
        if not input.is_floating_point():
            raise ValueError(
                f"SyncBatchNorm needs a floating-point input, not one of {input.dtype}; use input.float()."
            )
        running, momentum = self._count_batch()
        arguments = (self.weight, self.bias, self.eps, self.process_set)
        output, mean, variance, count = _Normalize.apply(input, *arguments)
        if running is not None:
            with torch.no_grad():
                unbiased = variance * (count / (count - 1))
                for statistic, new in zip(running, (mean, unbiased), strict=True):
                    statistic.lerp_(new.to(statistic), momentum)
        normalized: torch.Tensor = output
        return normalized

    def _check_input_dim(self, input: torch.Tensor) -> None:
        check_tensor(input, "SyncBatchNorm")
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) takes a tensor of shape [batch, {self.num_features}, ...], "
                f"not one of shape {list(input.shape)}."
            )

    def _count_batch(self) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, float]:
        """Return the running mean and variance, if any, and the weight of the new values in them."""
        if self.running_mean is None or self.running_var is None:
            return None, 0.0
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # a plain average over all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        return (self.running_mean, self.running_var), momentum

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Return `module` with every batch norm replaced; a module that is a batch norm itself is returned as a new
        one.

        Parameters and running statistics are taken over as they are, not copied, so that optimizers keep theirs.

        Args:
            module: any; changed in place.
            process_set: as for `SyncBatchNorm`.

        Raises:
            ValueError: a lazy batch norm has not seen its first input yet.
        """
        return _convert(module, process_set, {})


def _convert(module: torch.nn.Module, process_set: ProcessSet, done: dict[int, torch.nn.Module]) -> torch.nn.Module:
    # A module that is used in two places stays one.
    if id(module) in done:
        return done[id(module)]
    result = module
    if isinstance(module, _BatchNorm):
        if any(is_lazy(tensor) for tensor in (module.running_mean, module.weight) if tensor is not None):
            raise ValueError(
                f"{module} has no parameters yet: run one batch through the model before convert_sync_batchnorm."
            )
        result = SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_set=process_set,
            device="meta",  # nothing of it stays
        )
        result.weight, result.bias = module.weight, module.bias
        result.running_mean, result.running_var = module.running_mean, module.running_var
        result.num_batches_tracked = module.num_batches_tracked
        result.train(module.training)
    done[id(module)] = result
    for name, child in list(module._modules.items()):  # named_children() would name a shared one once
        if child is not None:
            setattr(result, name, _convert(child, process_set, done))
    return result


class _Normalize(torch.autograd.Function):
    """Normalises by the statistics of the joint batch. Formulas: Ioffe and Szegedy, Batch Normalization, 2015."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Give the output, and the joint batch's [channels] mean and biased variance, and its values per channel."""
        values = _to_exact(input)
        joint_mean, joint_variance, count = _compute_joint_statistics(values, process_set)
        ctx.gradient_name = make_gradient_name(_KIND, None, process_set)
        # This rank's own first: to read the sum makes the CPU wait for the GPU.
        if _count_values(values) < 2 and count < 2:
            raise ValueError(
                f"SyncBatchNorm: all ranks together gave {int(count)} values per channel, and it needs more than "
                f"1; this rank's input has shape {list(input.shape)}."
            )
        mean, variance = joint_mean.to(values), joint_variance.to(values)
        factor, offset = (None if tensor is None else tensor.to(values) for tensor in (weight, bias))
        output = functional.batch_norm(values, mean, variance, factor, offset, training=False, eps=eps)
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(input, weight, mean, torch.rsqrt(joint_variance + eps).to(values), count)
        ctx.process_set = process_set
        ctx.mark_non_differentiable(mean, variance, count)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    @_disable_dynamo  # which may be called amid a compiled step
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, *_: object) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients; the parameters' are this rank's parts, whose sum over the ranks is the joint one."""
        input, weight, mean, scale, count = ctx.saved_tensors
        incoming, others = _to_exact(gradient), _list_other_dimensions(input)
        normalized = (_to_exact(input) - _spread(mean, input)) * _spread(scale, input)
        sums = torch.stack([incoming.sum(others), (incoming * normalized).sum(others)])
        [joint] = make_allreduce([sums], _KIND, ctx.gradient_name, Sum, 1.0, 1.0, ctx.process_set).run(repeats=False)
        mean_gradient, mean_product = (_spread(total / count, input) for total in joint)
        factor = scale if weight is None else scale * weight.to(scale)
        of_input = (incoming - mean_gradient - normalized * mean_product) * _spread(factor, input)
        of_weight = None if weight is None else sums[1].to(weight)
        of_bias = None if ctx.bias_dtype is None else sums[0].to(ctx.bias_dtype)
        return of_input.to(input.dtype), of_weight, of_bias, None, None


def _count_values(values: torch.Tensor) -> int:
    """Return how many values there are per channel on this rank."""
    return values.numel() // values.shape[1] if values.shape[1] else 0


def _compute_joint_statistics(
    values: torch.Tensor, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return [channels] float64 mean and biased variance of all ranks' values, and how many there are per channel.

    Ranks' moments are put together as by Chan, Golub and LeVeque (1979): nothing is subtracted that is large.
    They stay on the GPU where they are sent from there.
    """
    channels = values.shape[1]
    local_count = _count_values(values)
    device = find_common_location([values], process_set).device  # not of every device's tensors there are float64
    statistics = torch.zeros(1, 2 * channels + 1, dtype=torch.float64, device=device)
    statistics[0, 0] = local_count
    if local_count:
        variance, mean = torch.var_mean(values, _list_other_dimensions(values), correction=0)
        statistics[0, 1:] = torch.cat([mean, variance]).to(statistics)
    [(gathered, _)] = make_allgather([statistics], _KIND, None, process_set).run()
    counts, means, variances = gathered.split([1, channels, channels], 1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    return mean, variance, total


def _to_exact(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to a type in which sums over a batch are exact enough."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def _list_other_dimensions(tensor: torch.Tensor) -> list[int]:
    """Return all dimensions but that of the channels."""
    return [0, *range(2, tensor.dim())]


def _spread(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return [channels] values in a shape that broadcasts over a batch."""
    return channels.view(1, -1, *[1] * (like.dim() - 2))
