"""Optimizers whose ranks step by themselves and exchange what has become of the parameters now and then.

`DiLoCo` (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models"; 2025, "Streaming
DiLoCo with overlapping communication") and `LocalSGD` (Stich 2018, "Local SGD Converges Fast and Communicates Little").
"""

from spark_estimator.torch.local_steps.optimizer import DiLoCo, LocalSGD, LocalStepsMethods

__all__ = ["DiLoCo", "LocalSGD", "LocalStepsMethods"]
