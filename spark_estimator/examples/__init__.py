"""Example programs: ``horovodrun -np 2 python -m spark_estimator.examples.digits``, and so on.

They use ``import spark_estimator.torch as hvd``; under ``horovodrun``, ``import horovod.torch as hvd`` is the same.
"""
