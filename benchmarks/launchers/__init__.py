"""What ``init()`` does in processes that other launchers start, and how long it takes.

=========  =============================================================
`rank`     the program of each process: it joins, or is made to fail
`starters` the launchers, on this host and on two network namespaces
`slurm`    a Slurm on this machine
=========  =============================================================
"""
