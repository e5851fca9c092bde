"""Measurements against peers, side by side in one run: each checks the numbers before it prints a speed."""
