"""A package that builds on Horovod's Spark estimators, in the shape of SynapseML's deep-learning module.

It imports `horovod` only: the tests run it on the aliases, and it would run on Horovod itself.
"""
