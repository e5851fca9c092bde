"""Elastic jobs on Spark: each process in a small Spark job, so that processes come and go alone (``job``)."""
