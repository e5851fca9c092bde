"""Runs the same jobs by this package, by TorchDistributor and by Ray, each as its own documentation teaches."""
