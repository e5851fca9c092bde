"""Joins the job of another launcher: mpirun, mpiexec, srun, torchrun, or any that sets RANK and WORLD_SIZE.

Such a launcher starts the processes and numbers them. What a rank needs beyond that, its peers' addresses and a key of
the job's own, rank 0 hands out. It opens a *rendezvous server*, a port behind the usual challenge, and leaves a
*notice* of it that only ranks of this job can use. The others read the notice and send their addresses to the server.
When all have done so, each gets the whole list.

===================  ================================================================================================
`launchers`          which launcher started this process, as which rank of how many; from environment variables, pure
`notices`            how the notice gets from rank 0 to the others: the interface, and a key that the user gives
`files`              a notice in a file that only the user can read, on one host or in a folder that all hosts share
`addresses`          where the server listens
`frames`             what server and ranks send each other
`rendezvous_server`  the server and its clients: a job of ranks in order, with a fresh key
`local_processes`    counts the launcher's processes on this host
`rank_locks`         locks that show which ranks the processes on this host have
`watch`              detects that a job can never be complete, so that all ranks raise an error early
`join`               all of it: the rendezvous that ``init()`` joins by
===================  ================================================================================================
"""
