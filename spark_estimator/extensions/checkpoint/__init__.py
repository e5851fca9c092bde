"""`Checkpointer`: checkpoints that training does not wait for. `spark_estimator.checkpoint` has its public names.

The docstring there has the order of events and the failures. The process that writes is the core's
(``checkpoint/writer``); `part_writer` is what it does here. That process imports this package without torch.
"""
