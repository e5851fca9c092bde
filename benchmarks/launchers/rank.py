"""A process that some launcher starts: ``rank.py CASE`` prints a line of JSON with what became of it.

Cases: ``plain`` does not join; in ``right`` all join; in ``wrong world`` rank 1 believes in one rank more; in ``missing
peer`` rank 1 ends before it joins; in ``killed rank`` rank 1 is killed once it has joined.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy

from spark_estimator.collectives import arrays, context
from spark_estimator.collectives.other_launchers.launchers import find_foreign_job


def main() -> int:
    """Returns 1 if this process could not do its part."""
    case = sys.argv[1]
    job = find_foreign_job()
    second = job is not None and job.rank == 1
    if case == "plain" or (case == "missing peer" and second):
        return 0
    if case == "wrong world" and second:
        assert job is not None
        os.environ[job.variable] = str(job.size + 1)
    started = time.monotonic()
    try:
        context.init()
        if case == "killed rank" and context.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        total = arrays.allreduce(numpy.array([context.rank() + 1]), arrays.ReduceOp.SUM)
        places = [context.local_rank(), context.local_size(), context.cross_rank(), context.cross_size()]
        line = {"rank": context.rank(), "size": context.size(), "places": places, "total": int(total[0])}
        context.shutdown()
    except Exception as error:
        line = {"error": f"{type(error).__name__}: {error}"}
    line["seconds"] = time.monotonic() - started
    os.write(1, (json.dumps(line) + "\n").encode())  # one write, so that lines of several processes don't mix
    return int("error" in line)


if __name__ == "__main__":
    sys.exit(main())
