"""What the ranks of a `TorchEstimator` exchange: the gradients of each step, or the parameters after several steps."""

from __future__ import annotations

from typing import Any

from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.estimators.torch.losses import TorchParts
from spark_estimator.torch.collectives.compressors import checked_compression


def check_exchange(compression: Any, sync: str) -> None:
    """Raise ValueError if `compression` is not a compression, or compresses gradients and none are sent."""
    allowed = (None, hvd.Compression.none, hvd.Compression.int8)
    if sync != "allreduce" and not any(compression is choice for choice in allowed):
        raise ValueError(
            f"gradient_compression={compression!r} and sync={sync!r} were both given: no gradients are "
            "sent. Use Compression.int8, Compression.none, or leave it out."
        )
    if compression is not None:
        try:
            checked_compression(compression)
        except ValueError as error:
            raise ValueError(f"gradient_compression: {error}") from None


def make_local_options(compression: Any, inner_steps: int) -> dict[str, Any]:
    """Return the keywords of `hvd.LocalSGD` and `hvd.DiLoCo` for an estimator's parameters."""
    options: dict[str, Any] = {"inner_steps": inner_steps}
    if compression is not None:
        # A pickle of Compression.int8 is another object.
        none = compression is hvd.Compression.none
        options["compression"] = hvd.Compression.none if none else hvd.Compression.int8
    return options


def wrap_optimizer(parts: TorchParts, model: nn.Module, passes: int) -> Any:
    """Return the optimizer, wrapped to exchange gradients or parameters as `parts` require.

    Args:
        model: whose parameters it has.
        passes: backward passes per step, where gradients are sent; else the caller counts them.
    """
    named = list(model.named_parameters())
    if not parts.steps_locally:
        return hvd.DistributedOptimizer(
            parts.optimizer,
            named_parameters=named,
            compression=parts.compression or hvd.Compression.none,
            backward_passes_per_step=passes,
        )
    wrap = hvd.DiLoCo if parts.sync == "diloco" else hvd.LocalSGD
    return wrap(parts.optimizer, named, **make_local_options(parts.compression, parts.inner_steps))
