"""A user's driver program: an elastic job that loses a rank, or the executor of one; then one that trains for ever.

Arguments: the master or remote address; what dies, "rank" or "executor"; a folder. It prints the first job's result on
    a line ``FIRST {...}``; after Ctrl-C it reports remaining processes, and runs a third one.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import spark_estimator.torch as hvd
from spark_estimator.spark import run_elastic


def batch(step):
    import torch

    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def fitted(steps, model, optimizer):
    """One process alone, as all ranks have the same rows."""
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return model.weight.flatten().tolist()


def fresh():
    import torch

    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def killed_by(what):
    """The process that has to die for `what`: this one, or the executor that it belongs to."""
    pid = os.getpid()
    while what == "executor" and b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def train(what, folder):
    hvd.init()
    model, optimizer = fresh()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def loop(state):
        alone = 0
        # At least ten steps, and until there are two again.
        while state.step < 10 or state.sizes[-3:] != [2] * 3:
            if state.step == 5 and hvd.rank() == 1 and not Path(folder, "struck").exists():
                Path(folder, "struck").touch()
                os.kill(killed_by(what), signal.SIGKILL)
                time.sleep(60)
            optimizer.zero_grad()
            model(batch(state.step)).square().mean().backward()
            optimizer.step()
            state.step += 1
            state.sizes.append(hvd.size())
            alone += hvd.size() == 1
            if alone:
                time.sleep(0.05)
            state.commit()
        return state.step, state.sizes, model.weight.flatten().tolist()

    return loop(hvd.elastic.TorchState(model, optimizer, step=0, sizes=[]))


def endless():
    import torch

    hvd.init()
    subprocess.Popen(["sleep", "1000"])  # as a data loader's worker would be: it must not outlive the job either
    print(f"rank {hvd.rank()} trains", flush=True)
    for _ in range(100_000_000):
        hvd.allreduce(torch.ones(1000), name="x")


def left(marker):
    """Processes that belong to the job."""
    count = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            count += marker.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            pass
    return count


def main():
    from pyspark.sql import SparkSession

    where, what, folder = sys.argv[1:]
    builder = SparkSession.builder
    if where.startswith("sc://"):
        builder = builder.remote(where)
    else:
        builder = builder.master(where).config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    builder.getOrCreate()
    marker = os.environ["MARKER"][::-1]
    env = {"SPARK_ESTIMATOR_TEST_MARKER": marker}
    values = run_elastic(train, (what, folder), num_proc=2, min_num_proc=1, env=env)
    print("FIRST " + json.dumps({"values": values, "alone": fitted(values[0][0], *fresh())}), flush=True)
    results = {}
    try:
        run_elastic(endless, num_proc=2, min_num_proc=1, env=env)
    except KeyboardInterrupt as error:
        results = {"left": left(marker), "text": str(error)}
    results["next"] = run_elastic(lambda: int(os.environ["HOROVOD_RANK"]), num_proc=2, start_timeout=60)
    print("RESULT " + json.dumps(results), flush=True)


main()
