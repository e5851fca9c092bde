"""The PyTorch estimator and its model."""
