"""Reductions of several ranks' values, by the names that this binding and its users' scripts use."""

from __future__ import annotations

from spark_estimator.collectives.reductions import Adasum, Average, Max, Min, Product, Sum, check_adasum, reduce_op

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "check_adasum", "reduce_op"]
