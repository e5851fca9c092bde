"""Elastic training, without any framework: a job that continues when it loses a rank, and accepts new ranks.

A *round* is the time in which a job is made of the same ranks; here it is also one ``init()`` to ``shutdown()``. A
*state* is what training must not lose: model, optimizer, counters. A *commit* is a copy of it in the memory of its own
process. A *survivor* is a process that moves from one round into the next, with its pid, its data and its commit.

Guarantees
----------
- A rank that dies, raises or freezes costs the job that rank, and all work since the last commit; nothing else. The
  other processes stay, are renumbered in their old order (so the lowest remaining one becomes rank 0), and continue.
- The state of a round is that of its rank 0, and rank 0 holds a state: it has taken part in a synchronisation before,
  or the job has just begun. Processes with a state have lower ranks than processes without, so a new process never
  overwrites a survivor. If no process with a state is left, the job ends with an error that names this cause.
- The error that ends a job names the ranks that were lost, how, and how many ranks were needed.

Order of events
---------------
1. *A rank is lost.* Its engine's peers notice the end of its connections, or 6 s without a heartbeat, and the
   collectives that they wait for raise `HorovodInternalError`. (`run_fn`) Each survivor restores its last commit.
2. (`rejoin`) It leaves the round (``shutdown``), opens new sockets to listen at, and sends `READY` to its launcher,
   with the ranks that were silent. Then it waits; no other process has to be alive for that.
3. (`rounds.RoundPlanner`, at the launcher) When every process of the round is ready or has ended, the next one begins.
   A silent process that is not ready either is killed first, so that it cannot return. Each process receives its new
   number, its peers, and a new key: `ROUND`.
4. (`rejoin`) ``init()`` connects the new round. It starts over with another one when a process dies meanwhile, within
   the limit of resets; that holds for the first ``init()`` of a job, too.
5. `State.on_reset`: the callbacks, for example to rescale a learning rate. They must run no collectives.
6. `State.sync`: all copy the state of rank 0, and commit it. The function is called again.

*A process joins.* The launcher starts it, and it runs the program until ``init()``, which waits. The launcher then
sends `UPDATED` to the others. At the next ``commit()`` or ``check_host_updates()`` rank 0 broadcasts that it has
received it, they raise `HostsUpdatedInterrupt` together, keep their state as it is, and continue with step 2; they wait
only for the slowest of them, and the new process is part of the next round.

*A process has to leave*, because its slot was removed, or its machine is about to be taken back (`WARNED`): the others
receive `UPDATED`, and step 3 leaves it out of the next round and ends it. As long as there are too few without it, or
no other process holds the state, it continues to work.

Failures
--------
- A collective about which the ranks disagree fails in the same way each time it is repeated: the third time, without a
  commit in between, its error is raised.
- Any other exception of the program ends its process, which then is a lost rank.
- A process of the round that is not ready within the launcher's time-out is killed, and named.
- With fewer ranks than ``min_size``, and no new process starting: the job ends; if hosts may still join, only after the
  launcher's time-out.
- In a job that is not elastic, `PeerLostError` is raised as if there were no `run_fn`. After any other failure all
  ranks are alive: each restores its last commit, leaves (so the others' collectives fail, too), and joins the same job.
- The launcher is killed: the kernel ends all that it started.

Between a process and its launcher there is a socket that the process inherits (``collectives.launcher_link``).
`rounds.RoundPlanner` decides which processes are in a round, and uses neither processes nor sockets; ``launch.elastic``
is the launcher that carries out its decisions, with processes of this host or of several.
"""

from spark_estimator.elastic.run import rejoin, run_fn
from spark_estimator.elastic.state import HostUpdateResult, ObjectState, State
from spark_estimator.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "rejoin",
    "run_fn",
]
