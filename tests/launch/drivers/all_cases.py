"""A user's driver program: runs every kind of job in the session that its arguments describe, prints the result of
each.

Arguments: the master or remote address, then name=value settings of the session.
"""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

import spark_estimator.spark
from spark_estimator import HorovodRunner
from spark_estimator._native import ReduceOp
from spark_estimator.collectives import arrays, context, objects
from spark_estimator.spark import SparkBackend
from tests.launch import clusters
from tests.launch.line_fit import fit_and_transform

folder = Path(tempfile.mkdtemp(dir="."))


def session():
    where, *settings = sys.argv[1:]
    builder = SparkSession.builder.appName("all cases")
    if where.startswith("sc://"):
        return builder.remote(where).getOrCreate()
    gpu_settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.executor.memory": "1g",
        **dict(setting.split("=", 1) for setting in settings),
    }
    for name, value in gpu_settings.items():
        builder = builder.config(name, value)
    return builder.master(where).getOrCreate()


def train(steps, scale=1):
    """The ranks' argument, and the sum that they compute from it, with PyTorch."""
    began = time.time()
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    print(f"rank {hvd.rank()} speaks")
    total = 0.0
    for step in range(steps):
        total = hvd.allreduce(torch.full((100,), float(hvd.rank() + 1)), name=f"step {step}", op=hvd.Sum)[0].item()
    names = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "CUDA_VISIBLE_DEVICES")
    mine = {name: os.environ.get(name) for name in names} | {"rank": hvd.rank(), "size": hvd.size(), "pid": os.getpid()}
    return {"sum": total * scale, "ranks": hvd.allgather_object(mine), "began": began, "executable": sys.executable}


def grandchildren(leaving=True):
    """Processes that shall end with the rank: one in its group, one that has left it."""
    subprocess.Popen(["sleep", "1000"])
    if leaving:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)


# The others do without PyTorch, whose import would take ten times as long as all that they do.
def total():
    """The sum of two numbers of each rank."""
    context.init()
    print(f"rank {context.rank()} adds")
    return float(arrays.allreduce(np.full(100, context.rank() + 1.0), op=ReduceOp.SUM)[0])


def fail(how, stamp):
    """Reduces for ever; rank 1 ends in the given way, in the middle of it."""
    context.init()
    grandchildren()
    for step in range(1_000_000):
        if step == 300 and context.rank() == 1:
            Path(stamp).write_text(repr(time.time()))
            print("the last words", file=sys.stderr, flush=True)
            if how == "exception":
                raise ValueError("rank 1 has had enough")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "sys.exit":
                sys.exit(0)
            if how == "os._exit":
                os._exit(0)
        arrays.allreduce(np.ones(1000), name="x")
    return


def large():
    return os.urandom(20 << 20)


def uses_artifact():
    import module_that_travels

    return module_that_travels.ANSWER


def of_every_rank(scale):
    context.init()
    grandchildren()
    print(f"rank {context.rank()} was asked")
    return [context.rank() * scale, os.environ["OF_ENV"], len(os.urandom(3 << 20))]


def held_up(spark):
    """A job that waits for slots which another one holds, no longer than it may; and by default on how many ranks."""
    go = folder.absolute() / "go"

    def wait(batches):
        while not go.exists():
            time.sleep(0.1)
        yield from batches

    holder = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapInArrow(wait, "id long").collect())
    holder.start()
    time.sleep(2)
    try:
        text = str(spark_estimator.spark.run(len, ("",), num_proc=2, start_timeout=8))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    go.touch()
    holder.join()
    return {"held up": text, "by default": spark_estimator.spark.run(len, ("",), verbose=0)}


def nothing_is_left(seconds=5):
    """Nothing that the last job's ranks were, or have started, is alive `seconds` after its end."""
    clusters.wait_until_gone(f"{clusters.MARKER}={os.environ[clusters.MARKER]}", seconds)


def failure_of(how, stamp_name=None, seconds=5):
    stamp = folder.absolute() / f"{stamp_name or how}.time"
    try:
        HorovodRunner(np=2).run(fail, how=how, stamp=str(stamp))
    except Exception as error:
        raised = time.time()
        nothing_is_left(seconds)
        return {
            "type": type(error).__name__,
            "text": str(error),
            "cause": str(error.__cause__),
            "seconds": raised - float(stamp.read_text()),
            **{name: getattr(error, name) for name in ("kind", "rank", "host", "exitcode", "signal", "traceback")},
            "log_tail": error.log_tail,
        }
    return {"type": None}


def never_ends(begun):
    """Reduces for ever beside a process that each rank has started; reports it in a file for each rank."""
    context.init()
    grandchildren()
    for step in range(100_000_000):
        arrays.allreduce(np.ones(1000), name="x")
        if step == 100:
            Path(f"{begun}.{context.rank()}").touch()


def ended_from_outside(how, run, end=None):
    """The result of a job that never ends on its own: `run(never_ends, its argument)`, ended by `end()`."""
    begun = folder.absolute() / f"begun {how}"
    ended = []

    def wait_and_end():
        while not all(Path(f"{begun}.{rank}").exists() for rank in range(2)):
            time.sleep(0.05)
        ended.append(time.time())
        end()

    if end is not None:
        threading.Thread(target=wait_and_end, daemon=True).start()
    try:
        run(never_ends, str(begun))
        error = None
    except BaseException as caught:
        error = caught
    out = time.time()
    nothing_is_left()
    result = {
        "type": type(error).__name__,
        "text": str(error),
        "seconds": out - ended[0] if ended else 0.0,
        "seconds more until nothing was left": time.time() - out,
    }
    # The slots are free again: this needs all of them.
    return result | {"next": HorovodRunner(np=2, timeout=120).run(total)}


def from_outside(spark):
    """A job that is interrupted, one that is cancelled by its group or tag, one that runs out of time."""

    def by_runner(function, begun):
        return HorovodRunner(np=2, max_restarts=2).run(function, begun=begun)

    results = {"interrupt": ended_from_outside("interrupt", by_runner, lambda: os.kill(os.getpid(), signal.SIGINT))}

    def by_run(function, begun):
        return spark_estimator.spark.run(function, (begun,), num_proc=2, verbose=0, max_restarts=2)

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addTag("mine")
        results["cancel"] = ended_from_outside("cancel", by_run, lambda: spark.interruptTag("mine"))
        spark.removeTag("mine")
    else:
        context = spark.sparkContext
        context.setJobGroup("mine", "a cell of a notebook")
        results["cancel"] = ended_from_outside("cancel", by_run, lambda: context.cancelJobGroup("mine"))
        context.setLocalProperty("spark.jobGroup.id", None)
    backend = SparkBackend(2, env={}, verbose=0, timeout=5, max_restarts=2)
    return results | {"timeout": ended_from_outside("timeout", lambda function, begun: backend.run(function, (begun,)))}


def loses_its_executor():
    """In the first attempt rank 1's executor dies; where that is the driver's own process, the task's."""
    context.init()
    attempt = int(os.environ["SPARK_ESTIMATOR_ATTEMPT"])
    victim = pid = os.getppid()
    while pid > 1:
        if "CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_text():
            victim = pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    # Where the supervisor itself is killed, no process is left that would end those that have left the group.
    grandchildren(leaving=victim != os.getppid())
    if attempt == 1 and context.rank() == 1:
        os.kill(victim, signal.SIGKILL)
    return objects.allgather_object((attempt, context.rank()))


def slow_start(spark):
    """A job that waits for slots until another one gives them back."""
    go = folder.absolute() / "go on"

    def hold(batches):
        while not go.exists():
            time.sleep(0.1)
        yield from batches

    holder = threading.Thread(target=lambda: spark.range(0, 2, 1, 2).mapInArrow(hold, "id long").collect())
    holder.start()
    time.sleep(1)
    threading.Timer(2, go.touch).start()
    value = HorovodRunner(np=2).run(total)
    holder.join()
    return value


def main():
    spark = session()
    # Only workers get it: the session's own processes are there already.
    os.environ["SPARK_ESTIMATOR_TEST_MARKER"] = os.environ["MARKER"]
    results = {}
    starts = []
    for _ in range(3):
        called = time.time()
        results["value"] = HorovodRunner(np=2).run(train, steps=5, scale=10)
        starts.append(results["value"]["began"] - called)
    results["seconds to user code"] = starts
    results["all"] = HorovodRunner(np=2, driver_log_verbosity="all").run(total)
    lines = io.StringIO()
    called = spark_estimator.spark.run(of_every_rank, (1.5,), num_proc=2, env={"OF_ENV": "x"}, stdout=lines, verbose=0)
    results["run"] = {"values": called, "lines": sorted(lines.getvalue().splitlines())}
    nothing_is_left()
    backend = SparkBackend(2, env={"OF_ENV": "x"}, verbose=0)
    results["backend"] = backend.run(of_every_rank, (2.5,))
    nothing_is_left()
    results["run"] |= held_up(spark)
    for how in ("exception", "kill", "sys.exit", "os._exit"):
        results[how] = failure_of(how)
        results[f"after {how}"] = HorovodRunner(np=2).run(total)
    results["from outside"] = from_outside(spark)
    results["slow start"] = slow_start(spark)
    called = time.time()
    results["restarted"] = {
        "values": spark_estimator.spark.run(loses_its_executor, num_proc=2, max_restarts=1, verbose=0, timeout=120),
        "seconds": time.time() - called,
    }
    nothing_is_left()
    results["fit and transform"] = fit_and_transform(spark)
    nothing_is_left()
    os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"] = "0"
    for how in ("exception", "kill"):
        # Spark has to end the other rank.
        results[f"{how} without channel"] = failure_of(how, f"{how} 2", seconds=20)
    results["value without channel"] = HorovodRunner(np=2, driver_log_verbosity="all").run(total)
    del os.environ["SPARK_ESTIMATOR_DRIVER_CHANNEL"]
    results["large"] = len(HorovodRunner(np=2).run(large))
    module = folder / "module_that_travels.py"
    module.write_text("ANSWER = 42\n")
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.addArtifact(str(module), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(module))
    results["artifact"] = HorovodRunner(np=2).run(uses_artifact)
    called = time.time()
    try:
        HorovodRunner(np=64).run(total)
    except Exception as error:
        results["too many"] = {"type": type(error).__name__, "text": str(error), "seconds": time.time() - called}
    results["rows"] = spark.range(10).count()
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


try:
    main()
except BaseException:
    traceback.print_exc()
    raise
