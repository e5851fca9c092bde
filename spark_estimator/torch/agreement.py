"""Lets all ranks find out whether they are about to do the same, by the name that this binding knows it by."""

from __future__ import annotations

from spark_estimator.collectives.consistency import agree

__all__ = ["agree"]
