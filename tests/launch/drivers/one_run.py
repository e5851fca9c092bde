"""A user's driver program: one job, in a session that it makes or, without arguments, in one that is made for it.

Arguments: the master, then name=value settings of the session.
"""

import json
import sys
import time

from spark_estimator import HorovodRunner


def train():
    import os

    return os.getpid(), sys.executable


def main():
    if len(sys.argv) > 1:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
        for setting in sys.argv[2:]:
            builder = builder.config(*setting.split("=", 1))
        builder.getOrCreate()
    called = time.time()
    try:
        result = {"value": HorovodRunner(np=2).run(train)}
    except Exception as error:
        result = {"type": type(error).__name__, "text": str(error), "cause": repr(error.__cause__)}
    print("RESULT " + json.dumps({**result, "seconds": time.time() - called}), flush=True)


main()
