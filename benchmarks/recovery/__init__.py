"""Kills ranks of an estimator's training, and times what that costs: ``python -m benchmarks.recovery``."""
