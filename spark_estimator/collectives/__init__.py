"""Collective operations between the ranks of one job, without any framework: by address, or on numpy arrays.

A *rank* is one of the job's processes, numbered from 0. A *collective* is an operation in which all ranks take part and
which they all name alike: it runs once every rank has submitted it. A *rendezvous* is the knowledge with which a
process becomes a rank: who it is, who the others are, where they listen, and the key by which they know each other.

Modules, bottom up: ``rendezvous`` (who takes part) -> ``launcher_link`` (who takes part next, in an elastic job),
``connections`` (authenticated connections and shared segments) -> ``engine`` (one membership of one group of ranks) ->
``call`` (a collective as the engine's request), ``handle`` and ``requests`` (wait and submit) -> ``process_set``,
``membership`` (the engines of a job) -> ``context`` (this process's membership: ``init``, ``rank``...) -> ``ops`` (the
door for framework bindings) -> ``objects``, ``arrays``.
"""
