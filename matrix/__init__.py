"""Runs a short test of the whole package with versions other than the main ones: ``make matrix CELL=spark-3.4``."""
