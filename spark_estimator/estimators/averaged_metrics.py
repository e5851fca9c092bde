"""Warns of metrics of a batch whose mean over batches is not their value over all rows: AUC, F1, R2 and others."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spark_estimator.estimators.params import warn_caller

#: Words in the names of metrics that are no means over rows; `_to_snake_case` shows how names are written.
_NO_MEANS = re.compile(
    r"_(roc_?auc|pr_?auc|log_?auc|auc\d*|auroc|auprc|aupr|precision|recall|sensitivity|specificity|predictive_value|eer"
    r"|f1|f2|f1_?score|f2_?score|f_?beta|f_?score|dice|jaccard|io_?u|balanced_accuracy|calibration_error"
    r"|r2|r2_?score|r_?squared|d2|relative_squared|explained_variance|rmse|rmsle|root_mean_squared|max_error|median"
    r"|mcc|matthews|kappa|corr|corrcoef|correlation|pearsonr?|spearmanr?|kendalltau|kendall|concordance|gini|perplexity)_"
)


def warn_of_averages(metrics: Iterable[tuple[str, Callable[..., Any]]], remedy: str) -> None:
    """Warn at the user's line of metrics that are known to be no means over rows.

    Args:
        metrics: names, and functions that return the metric of a batch.
        remedy: where to get their values over all rows.
    """
    no_means = [name for name, metric in metrics if _is_no_mean(name, metric)]
    if no_means:
        warn_caller(
            f"metrics: {', '.join(dict.fromkeys(no_means))}: an epoch's value is the mean of its batches' values. That "
            "is right for means over rows, such as accuracy and the mean squared error, and not for AUC, F1, R2, "
            f"precision, recall, roots and correlations. {remedy}"
        )


def _is_no_mean(name: str, metric: Any) -> bool:
    return any(_NO_MEANS.search(_to_snake_case(each)) for each in (name, *_find_names(metric)))


def _to_snake_case(name: str) -> str:
    """Return ``BinaryAUROC`` as ``_binary_auroc_``."""
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name)}_".lower()


def _find_names(metric: Any) -> Iterator[str]:
    """Yield the names of a function, or of an object's class, and of what its code calls."""
    while isinstance(metric, functools.partial):
        if metric.keywords.get("squared") is False:  # torchmetrics' spelling of a root
            yield "rmse"
        metric = metric.func
    if getattr(metric, "squared", None) is False:
        yield "rmse"
    for name in (getattr(metric, "name", None), getattr(metric, "__name__", type(metric).__name__)):
        if isinstance(name, str):
            yield name
    yield from getattr(getattr(metric, "__code__", None), "co_names", ())
