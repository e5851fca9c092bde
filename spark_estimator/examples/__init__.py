"""Programs to copy from: ``horovodrun -np 2 python -m spark_estimator.examples.digits``, and so on.

They say ``import spark_estimator.torch as hvd``; ``import horovod.torch as hvd`` does the same under ``horovodrun``.
"""
