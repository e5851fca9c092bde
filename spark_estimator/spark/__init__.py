"""`horovod.spark`: `run` calls a function on ranks in Spark tasks, `run_elastic` on ranks that may join and leave; a
`Backend` starts the ranks of an estimator.

Importing this needs neither Spark nor a framework; running does.
"""

from spark_estimator.spark.backend import Backend, LocalBackend, SparkBackend
from spark_estimator.spark.runner import run, run_elastic

__all__ = ["Backend", "LocalBackend", "SparkBackend", "run", "run_elastic"]
