"""Elastic jobs on Spark: each process in a small Spark job, so that processes start and end separately (``job``)."""
