"""JAX on ranks: the job as a cluster of ``jax.distributed``, and collectives of pytrees (``spark_estimator.jax``)."""
