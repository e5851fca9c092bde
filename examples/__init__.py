"""Example programs: ``horovodrun -np 2 python -m examples.digits`` in a checkout, and so on.

They use ``import spark_estimator.torch as hvd``; under ``horovodrun``, ``import horovod.torch as hvd`` is the same.
"""
