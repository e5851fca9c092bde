"""How the estimators for PyTorch make steps: clipping, rates, precision, and steps that are left out."""
