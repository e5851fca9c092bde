"""Starts the ranks of a job, watches over them, and brings back their values or the failure that came first.

A *launcher* decides where ranks run: ``local`` on this host, ``spark`` in the tasks of one barrier stage, ``cli`` for
commands. Each rank is a *worker*: a process of its own that runs ``worker``. Each worker has a *supervisor* beside it
(a thread of the launcher, or the Spark task), which feeds it, reads its lines and its value, notices its end, and lets
nothing of it outlive the job. ``launcher`` is what all launchers do while a job runs.

Modules, bottom up: ``spec`` (what travels), ``pickling``, ``failures``, ``result_pipe`` -> ``worker`` (the child),
``supervisor`` (its parent) -> ``launcher`` -> ``local``, ``spark`` -> ``cli``, ``in_session`` (the door to ``spark``).
"""
