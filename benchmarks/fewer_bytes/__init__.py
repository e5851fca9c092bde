"""Compares ways to send fewer bytes between hosts; ``python -m benchmarks.fewer_bytes``."""
