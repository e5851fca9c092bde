"""Warns, on the driver, of parameters of PyTorch's that are used in another way than they may be meant."""

from __future__ import annotations

import itertools

from spark_estimator.estimators.averaged_metrics import warn_of_averages
from spark_estimator.estimators.torch.losses import TorchParts


def warn_of_metrics(parts: TorchParts) -> None:
    """Warns of metrics that are known to be no means over rows."""
    names, metrics = itertools.chain(*parts.metric_names), itertools.chain(*parts.metrics)
    warn_of_averages(
        zip(names, metrics, strict=True),
        "Compute these from trained.transform(rows), by sklearn.metrics or Spark ML's evaluators.",
    )
