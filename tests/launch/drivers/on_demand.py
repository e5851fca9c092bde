"""A user's driver program: jobs in a session whose executors start when tasks wait for them, and which has none at
first.

Arguments: the master or remote address, then name=value settings of the session. It may have three executors of one
slot each, and Spark starts copies of tasks that take long.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import spark_estimator.spark
from spark_estimator import HorovodRunner, TorchDistributor
from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context, objects
from tests.launch import clusters
from tests.launch.line_fit import fit_and_transform

folder = Path(tempfile.mkdtemp(dir=".")).absolute()


def session():
    where, *settings = sys.argv[1:]
    builder = SparkSession.builder.appName("on demand")
    if where.startswith("sc://"):
        return builder.remote(where).getOrCreate()
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    return builder.master(where).getOrCreate()


def executor():
    """The executor's process, above this one."""
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def total(name=""):
    """The sum of two numbers of each rank; writes down that this rank has started."""
    context.init()
    with open(folder / f"starts {name}", "a") as file:
        file.write(f"{context.rank()}\n")
    return float(arrays.allreduce(np.full(100, context.rank() + 1.0), op=ReduceOp.SUM)[0])


def starts(name):
    """Which ranks have started, and how often."""
    return sorted((folder / f"starts {name}").read_text().split())


def fail(name, how):
    """Reduces for ever; rank 1 ends in the given way, in the middle of it."""
    total(name)
    for step in range(1_000_000):
        if step == 100 and context.rank() == 1:
            if how == "raises":
                raise ValueError("rank 1 has had enough")
            os.kill(os.getppid() if how == "task" else executor(), signal.SIGKILL)
            if how == "result":  # which its task cannot hand over; that may be sent a signal before or after its end
                return
        if how == "result" and step == 100:
            return
        arrays.allreduce(np.ones(1000), name="x")


def failure(how):
    began = time.time()
    try:
        HorovodRunner(np=2).run(fail, how, how=how)
    except Exception as error:
        seconds = time.time() - began
        nothing_is_left()
        result = {"type": type(error).__name__, "text": str(error), "seconds": seconds, "starts": starts(how)}
        return result | {name: getattr(error, name, None) for name in ("kind", "rank")}
    return {"type": None}


def nothing_is_left():
    clusters.wait_until_gone(f"{clusters.MARKER}={os.environ[clusters.MARKER]}", 10)


def error_of(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def busy(spark, slots):
    """As many slots are in use by another job until the end of the block."""
    until = tempfile.mktemp(dir=folder)

    def hold(batches):
        Path(f"{until}.{os.getpid()}").touch()
        while not Path(until).exists():
            time.sleep(0.05)
        yield from batches

    frame = spark.range(0, slots, 1, slots).mapInArrow(hold, "id long")
    holder = threading.Thread(target=frame.collect)
    holder.start()
    try:
        while len(list(folder.glob(Path(until).name + ".*"))) < slots:
            time.sleep(0.05)
        yield
    finally:
        Path(until).touch()
        holder.join()


def late_start(spark):
    """Jobs of two ranks while there is one slot, and while there is none."""
    results = {}
    with busy(spark, 3):
        pass  # brings all executors
    with busy(spark, 2):
        results["one"] = error_of(lambda: spark_estimator.spark.run(len, ("",), num_proc=2, start_timeout=15))
        os.environ["HOROVOD_SPARK_START_TIMEOUT"] = "5"
        results["by variable"] = error_of(lambda: HorovodRunner(np=2).run(len, ""))
        del os.environ["HOROVOD_SPARK_START_TIMEOUT"]
    with busy(spark, 3):
        results["none"] = error_of(lambda: spark_estimator.spark.run(len, ("",), num_proc=2, start_timeout=5))
    with busy(spark, 2):
        waiting = Waiting()
        ended = threading.Thread(target=lambda: results.update(value=HorovodRunner(np=2).run(total, "late")))
        ended.start()
        waiting.kill_executor()
        waiting.pids(1)
    ended.join()
    return results | {"starts": starts("late")}


class Waiting:
    """The workers that have no rank yet; on this machine, which has all hosts."""

    def __init__(self):
        self._mark = f"{clusters.MARKER}={os.environ[clusters.MARKER]}"

    def pids(self, count):
        """Their process numbers, once there are `count` of them."""
        deadline = time.monotonic() + 60
        while len(pids := list(clusters.processes_with(self._mark))) < count:
            assert time.monotonic() < deadline, pids
            time.sleep(0.05)
        return pids

    def kill_executor(self):
        """Kills that of the one that waits, as its host's end would."""
        (pid,) = self.pids(1)
        while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        nothing_is_left()


def slow_rank():
    """Spark starts a copy of rank 1's task, as it works much longer than rank 0."""
    total("copied")
    if context.rank() == 1:
        time.sleep(12)
    return context.rank()


def copies(spark):
    """The value of a job whose slow task is copied, and how many copies there were, if Spark reports it."""
    values = spark_estimator.spark.run(slow_rank, num_proc=2, verbose=0)
    nothing_is_left()
    count = None
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
        stages = {stage for job in tracker.getJobIdsForGroup(None) for stage in tracker.getJobInfo(job).stageIds}
        count = 0
        for stage in stages:
            tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), 100)
            count += sum(tasks.apply(number).speculative() for number in range(tasks.size()))
    return {"values": values, "starts": starts("copied"), "copies": count}


def loses_its_executor():
    """In the first attempt rank 1's executor dies."""
    context.init()
    attempt = int(os.environ["SPARK_ESTIMATOR_ATTEMPT"])
    if attempt == 1 and context.rank() == 1:
        os.kill(executor(), signal.SIGKILL)
        time.sleep(60)
    return objects.allgather_object((attempt, context.rank()))


def cancelled(spark):
    """A job that its user cancels in Spark."""
    begun = folder / "begun"

    def never_ends():
        context.init()
        for step in range(100_000_000):
            arrays.allreduce(np.ones(1000), name="x")
            if step == 100 and context.rank() == 0:
                begun.touch()

    def cancel():
        while not begun.exists():
            time.sleep(0.05)
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            spark.interruptTag("mine")
        else:
            spark.sparkContext.cancelJobGroup("mine")

    threading.Thread(target=cancel, daemon=True).start()
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addTag("mine")
    else:
        spark.sparkContext.setJobGroup("mine", "a cell of a notebook")
    text = error_of(lambda: spark_estimator.spark.run(never_ends, num_proc=2, verbose=0))
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.removeTag("mine")
    else:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    nothing_is_left()
    return text


def without_channel():
    os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"] = "0"
    text = error_of(lambda: HorovodRunner(np=2).run(len, ""))
    del os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"]
    return text


def main():
    spark = session()
    # Only workers get it: the session's own processes are there already.
    os.environ[clusters.MARKER] = os.environ["MARKER"]
    results = {}
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        results["executors"] = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1
    results["first"] = HorovodRunner(np=2, driver_log_verbosity="all").run(total, "first")
    results["starts"] = starts("first")
    nothing_is_left()
    results["too many"] = error_of(lambda: HorovodRunner(np=4).run(total))
    results["no number"] = [
        error_of(lambda: spark_estimator.spark.run(total)),
        error_of(lambda: HorovodRunner(np=0).run(total)),
    ]
    results["without channel"] = without_channel()
    for how in ("raises", "executor", "task", "result"):
        results[how] = failure(how)
        results[f"after {how}"] = HorovodRunner(np=2).run(total)
    results["distributor"] = TorchDistributor(2, local_mode=False, use_gpu=False).run(total)
    results["restarted"] = spark_estimator.spark.run(loses_its_executor, num_proc=2, max_restarts=1, verbose=0)
    nothing_is_left()
    results["cancelled"] = cancelled(spark)
    results["late start"] = late_start(spark)
    nothing_is_left()
    results["copies"] = copies(spark)
    results["fit and transform"] = fit_and_transform(spark)
    nothing_is_left()
    results["rows"] = spark.range(10).count()
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
