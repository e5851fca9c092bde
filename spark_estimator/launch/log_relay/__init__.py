"""Relays a rank's lines from its pipes to the screen or file that shows them.

``worker_output`` reads a worker's stdout and stderr in its supervisor, cuts them into ``lines``, and passes them to the
supervisor's relay. They reach the driver on the connection that the launcher has anyway (a queue in the same process,
ssh, Spark's driver channel), or, where executors can't connect to the driver, in files of a shared folder
(``log_files``) or as the last lines of each rank at the end of the job (``without_channel``). ``display`` is
how the driver shows them.
"""
