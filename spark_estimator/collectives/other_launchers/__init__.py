"""Joins the job of another launcher: mpirun, mpiexec, srun, torchrun, or any that sets RANK and WORLD_SIZE.

Such a launcher starts the processes and numbers them. What a rank needs beyond that, its peers' addresses and a key of
the job's own, rank 0 hands out. It opens a *desk*, a port behind the usual challenge, and leaves a *notice* of it that
only ranks of this job can use. The others read the notice and send their addresses to the desk. When all have done so,
each gets the whole list.

=============  ======================================================================================================
`launchers`    which launcher started this process, as which rank of how many; from environment variables, pure
`notices`      how the notice gets from rank 0 to the others: the interface, and a key that the user gives
`files`        a notice in a file that only the user can read, on one host or in a folder that all hosts share
`addresses`    where a desk listens
`frames`       what they send each other there
`desk`         the desk and its visitors: a job of ranks in order, with a fresh key
`siblings`     counts the launcher's processes on this host
`claims`       locks that show which ranks the processes on this host have
`watch`        what shows that a job cannot come together, so that all ranks raise an error early
`join`         all of it: the rendezvous that ``init()`` joins by
=============  ======================================================================================================
"""
