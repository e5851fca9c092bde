"""The Lightning estimator and its model."""
