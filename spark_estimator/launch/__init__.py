"""Starts the ranks of a job, supervises them, and returns their values or raises the failure that came first.

A *launcher* decides where ranks run: ``local`` on this host, ``ssh`` on several, ``spark`` in the tasks of a Spark job,
``cli`` for commands. Each rank is a *worker*, a separate process. Each worker has a *supervisor* (a thread of the
launcher or of an agent, or the Spark task), which sends its spec, reads its lines and its value, notices its end, and
ends everything that it started.

A folder imports only those before it: ``job`` (values, and what all launchers do while a job runs), ``log_relay``,
``worker``, ``elastic`` and ``local``, ``agent``, ``ssh``, ``spark``, ``cli``.
"""
