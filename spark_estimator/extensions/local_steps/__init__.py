"""Optimizers whose ranks step alone and exchange the changes of their parameters at intervals.

`DiLoCo` (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"; 2025, "Streaming
DiLoCo with overlapping communication") and `LocalSGD` (Stich 2018, "Local SGD Converges Fast and Communicates Little").
"""

from spark_estimator.extensions.local_steps.optimizer import DiLoCo, LocalSGD, LocalStepsMethods

__all__ = ["DiLoCo", "LocalSGD", "LocalStepsMethods"]
