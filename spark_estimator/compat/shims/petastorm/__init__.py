"""Shim for petastorm: imports the real petastorm if it is installed, else spark_estimator's aliases."""

from _spark_estimator_shim import serve  # type: ignore[import-not-found]  # found where this folder is on the path

serve("petastorm")
