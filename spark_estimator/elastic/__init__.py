"""Elastic training, without any framework: a job that goes on when it loses a rank, and takes in a new one.

A *round* is the time in which a job is made of the same ranks; here it is also one ``init()`` to ``shutdown()``. A
*state* is what training must not lose: model, optimizer, counters. A *commit* is a copy of it in the memory of its own
process. A *survivor* is a process that goes from one round into the next, with its pid, its data and its commit.

What it promises
----------------
- A rank that dies, raises or freezes costs the job that rank, and all work since the last commit; nothing else. The
  other processes stay, are numbered anew in their old order (so the lowest that is left becomes rank 0), and go on.
- The state of a round is that of its rank 0, and rank 0 holds a state: it has taken part in a synchronisation before,
  or the job has just begun. Whoever holds one has a lower rank than whoever does not, so a process that has come anew
  never overwrites a survivor. When nobody who holds the state is left, the job ends and says so.
- Whatever ends the job, its error names who was lost, how, and how many ranks were needed.

In which order things happen
----------------------------
1. *A rank is lost.* Its engine's peers notice the end of its connections, or 6 s without a sign of life, and what they
   wait for raises `HorovodInternalError`. (`run_fn`) Each survivor restores its last commit.
2. (`rejoin`) It leaves the round (``shutdown``), opens new sockets to listen at, and says `READY` to its launcher, with
   the ranks that it found silent. Then it waits; nobody else has to be alive for that.
3. (`rounds.RoundPlanner`, at the launcher) When every process of the round is ready or has ended, the next one begins.
   Who was found silent and does not come either is killed first, so that it cannot come back. Each process is told
   its new number, its peers, and a key that no earlier round knew: `ROUND`.
4. (`rejoin`) ``init()`` connects the new round. It begins again with another one when somebody dies meanwhile, within
   the limit of resets; that holds for the first ``init()`` of a job, too.
5. `State.on_reset`: the callbacks, for example to rescale a learning rate. They must run no collectives.
6. `State.sync`: all take over the state of rank 0, and commit it. The function is called again.

*A process comes.* The launcher starts it, and it runs the program until ``init()``, which waits. The launcher then
says `UPDATED` to the others. At the next ``commit()`` or ``check_host_updates()`` rank 0 tells all ranks that it has
heard so, they raise `HostsUpdatedInterrupt` together, keep their state as it is, and go on at 2; there is nobody to
wait for but the slowest of them, and the new process is one of the next round.

*A process is to go*, as its slot is gone: the others are told as if one had come, and at 3 it is not in the next round,
but ended. As long as there are too few without it, or nobody else holds the state, it stays at work.

What fails, and how
-------------------
- A collective that the ranks contradict one another about fails in the same way each time it is repeated: the third
  time, without a commit in between, its error is raised.
- Any other exception of the program ends its process, which then is a lost rank.
- A process of the round that is not ready within the launcher's time-out is killed, and named.
- With fewer ranks than the least that was asked for, and no new one under way: the job ends; where hosts may yet come,
  only after the launcher's time-out.
- In a job that is not elastic `HorovodInternalError` is raised as if there were no `run_fn`.
- The launcher is killed: the kernel ends all that it started.

Between a process and its launcher there is a socket that the process inherits (``collectives.launcher_link``). Who is
in a round is decided by one object that knows no processes and no sockets, `rounds.RoundPlanner`; ``launch.elastic`` is
the launcher that does what it decides, with processes of this host or of several.
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
