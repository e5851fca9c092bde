"""Ranks on several hosts, reached by ssh. This page lists the guarantees, the order of steps, and the failures.

A *host agent* is the program that supervises the ranks of one host. The launcher starts one over ssh on each host that
is not its own (ranks on its own host need none), and talks with it through ssh's standard input and output; this
package opens no port for that. ``-H a:4,b:4`` gives ranks 0 to 3 to a and 4 to 7 to b: hosts in this order, each filled
before the next.

In this order:

1. **Nothing runs before every host has agreed.** All agents are started at the same time, by ``ssh -o BatchMode=yes``,
   which asks for no password. Each reports its versions: those of Python and the package must be the launcher's. It
   then changes to the launcher's working directory and reports at which address its ranks will listen: that of an
   interface that the user named, else the one at which ssh has reached the host. All of this within the start timeout
   (`HOROVOD_START_TIMEOUT`, ``--start-timeout``). A `PreflightError` names every host that failed, with ssh's own last
   line and what to do about it.
2. **Workers start everywhere**, and import while addresses are exchanged. Then each receives its rank, its peers and
   the key of the job: a fresh one, which is sent through ssh's standard input and the worker's. So does the pickled
   function, once for each host. Neither is ever in a command line, an environment, a file or a log.
3. **While they run**, their lines arrive in the order in which each rank wrote them, control characters escaped. A
   rank that writes faster than the launcher prints is slowed down; none of its lines is lost.
4. **The first failure ends the job**, on all hosts, and is reported as for ranks of one host: rank, host, exit status
   or signal, traceback.

What fails, and which process detects it:

======================================  ==============================================================================
a rank dies, raises, exits              its agent, at once; all other ranks are stopped
ssh, or the agent, is killed            the launcher sees the connection end; it names each rank of that host. On the
                                        host the agent sees the same and ends its ranks; they die with it, if it is it
the launcher is killed, or interrupted  the agents see their standard input end, and end their ranks: with SIGTERM, and
                                        two seconds later, if need be, SIGKILL
a host, or the network to it, is lost   neither receives the other's heartbeat (one each `HEARTBEAT_SECONDS`) for
                                        `SILENCE_SECONDS`; both act as above. A launcher that is stopped (Ctrl-Z) for
                                        longer than that is treated as lost, too
======================================  ==============================================================================

In an elastic job (``launch.elastic``) a failure ends only a round. New processes take the first free slot, in the order
of the hosts. A host that is out of contact, or on which ranks failed repeatedly, is not used again unless there is a
cool-down (``launch.elastic.placement``). A script may print other hosts while the job runs
(``launch.elastic.discovery``). A new host is connected when a process is to start there, and skipped for a while if it
can't be reached; the ranks of a host that is removed leave the job at the next commit at which enough others are left.

Ranks get the launcher's environment, as with Horovod, but for what describes one host or one login (``environment``);
they get it through ssh's standard input, so that what is secret in it shows in no list of processes. They run in the
working directory of the launcher; where a host lacks it, a *function* starts in the home directory, and a line reports
it.

ssh checks host keys by its configuration. ``env.py`` documents `SPARK_ESTIMATOR_SSH_COMMAND` and
`SPARK_ESTIMATOR_REMOTE_PYTHON`.
"""
