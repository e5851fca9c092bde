"""Losses and metrics over an epoch's rows of all ranks: adds up the variables of Keras' metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context
from spark_estimator.estimators.keras.objects import assign, get_values
from spark_estimator.keras.importing import is_keras_2


class Sums:
    """The counts of a compiled model's metrics.

    A metric is a function of sums over rows, which is what its variables hold: those of all ranks are added up, as
    Keras itself does for its replicas, and the result is that of all rows; also of what is no mean, such as AUC.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rows = 0
        # Keras divides the loss of each output by a number of rows that a compiled step may not know.
        self._totals: dict[str, float] = {}

    @property
    def rows(self) -> int:
        """Return the rows of this rank since the epoch began."""
        return self._rows

    @property
    def _variables(self) -> list[Any]:
        return get_metrics_variables(self._model)

    @property
    def _outputs_losses(self) -> list[Any]:
        return list(getattr(getattr(self._model, "_compile_loss", None), "metrics", None) or [])

    @contextmanager
    def add_up(self) -> Iterator[None]:
        """Make ``train_on_batch`` and ``test_on_batch`` add to the metrics of the batches before, inside the
        context.
        """
        object.__setattr__(self._model, "reset_metrics", self._reset_losses)
        try:
            yield
        finally:
            object.__delattr__(self._model, "reset_metrics")

    def _reset_losses(self) -> None:
        for metric in self._outputs_losses:
            metric.reset_state()

    def begin(self) -> None:
        """Reset the counts."""
        self._model.reset_metrics()
        self._rows = 0
        self._totals = {}

    def add(self, logs: dict[str, Any], rows: int) -> dict[str, Any]:
        """Count a batch, after its step.

        Returns:
            The logs for Keras' callbacks: this rank's, since the epoch began.
        """
        self._rows += rows
        result = dict(logs)
        for metric in self._outputs_losses:
            if metric.name in logs:
                self._totals[metric.name] = self._totals.get(metric.name, 0.0) + float(logs[metric.name]) * rows
                result[metric.name] = self._totals[metric.name] / self._rows
        return result

    def get_state(self) -> dict[str, Any]:
        """Return this rank's counts, for a checkpoint."""
        return {"metrics": get_values(self._variables), "rows": self._rows, "totals": dict(self._totals)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        if self._variables:
            assign(self._variables, state["metrics"])
        self._rows = int(state["rows"])
        self._totals = dict(state["totals"])

    def compute_averages(self) -> dict[str, float]:
        """Return the means over the rows of all ranks, by the metrics' names. A collective."""
        model = self._model
        names = [metric.name for metric in self._outputs_losses]
        if context.size() > 1:
            for variable, value in zip(self._variables, _sum_over_ranks(self._variables), strict=True):
                variable.assign(value)
        local_sums = numpy.array([self._rows, *(self._totals.get(name, 0.0) for name in names)], numpy.float64)
        rows, *totals = arrays.allreduce(local_sums, ReduceOp.SUM, "estimator.averages").tolist()
        result = {}
        for name, value in model.get_metrics_result().items():
            number = numpy.asarray(value.cpu().detach() if hasattr(value, "detach") else value)
            result[name] = number.item() if number.ndim == 0 else number.tolist()
        result |= {name: total / rows for name, total in zip(names, totals, strict=True) if rows}
        return result


def get_metrics_variables(model: Any) -> list[Any]:
    """Return the variables of a model's losses and metrics."""
    if is_keras_2(model):
        return [variable for metric in model.metrics for variable in metric.variables]
    return list(model.metrics_variables)


def _sum_over_ranks(variables: list[Any]) -> list[Any]:
    """Return [variables] over all ranks: sums, or by the variable's own `aggregation`. A collective."""
    values = get_values(variables)
    if not values:
        return []
    # As float64: sums of large counts stay exact, and of truth values they are those of numbers.
    sent = [value.astype(numpy.float64) for value in values]
    sums = arrays.grouped_allreduce(sent, ReduceOp.SUM, "estimator.metrics")
    size = context.size()
    result = []
    for value, total, variable in zip(values, sums, variables, strict=True):
        kind = getattr(variable, "aggregation", None)  # "mean", "only_first_replica", or others: the sum
        combined = total / size if kind == "mean" else value if kind == "only_first_replica" else total
        result.append(combined.astype(value.dtype))
    return result
