"""Smaller wire types for tensors, for all framework bindings: casts, and values that the engine rounds to int8."""
