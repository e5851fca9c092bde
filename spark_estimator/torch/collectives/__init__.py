"""Collectives on tensors: blocking, asynchronous, grouped and differentiable."""
