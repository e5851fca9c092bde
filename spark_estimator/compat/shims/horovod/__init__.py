"""Stands in for Horovod on a path: makes way for a real Horovod that is installed, else leads to spark_estimator."""

from _spark_estimator_shim import serve  # type: ignore[import-not-found]  # found where this folder is on the path

serve("horovod")
