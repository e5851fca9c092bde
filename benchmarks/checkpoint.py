"""Times what a checkpoint costs training: ours, ``torch.distributed.checkpoint.async_save``, and ``torch.save``.

``python -m benchmarks.checkpoint [--np 1] [--mb 400] [--rate 5] [--steps 40] [--every 10] [--step-ms 100] [--busy]``
trains a model of `mb` megabytes with steps of `step-ms`, in which the host waits, as it does for an accelerator; with
``--busy`` it computes all that time. With ``--gpu`` the model is on a GPU, which computes as long as the host waits.
The store takes `rate` megabytes a second from each rank. The ways take turns in each round: no checkpoints, ours, ours
with ``overlap=False``, async_save (asked for only where the one before is done, as it has no place for one that waits).
``torch.save`` is timed once, on rank 0, as it takes as long as the store.

It prints, for each way, the time that a call and the following optimizer's step take more than without checkpoints
(median and longest), and the time of all steps beside those without. It then loads a checkpoint of this package, made
in a store without a limit, and compares every number. The memory's speed is printed beside it: a copy of a rank's
share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.command_line import ended_by_signals, positive
from benchmarks.data.throttled_store import Throttled, ThrottledStore, throttled_writer
from spark_estimator.runner import HorovodRunner

MIB = 1 << 20
# At 1.5 GHz: an accelerator of another rate works a little longer or shorter than the host waits.
GPU_CYCLES_OF_A_MILLISECOND = 1_500_000
WAYS = ("none", "ours", "ours, overlap=False", "async_save")


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """On every rank; rank 0's result counts."""
    import torch

    import spark_estimator.torch as hvd

    hvd.init()
    if hvd.size() > 1:
        torch.distributed.init_process_group("gloo")  # for async_save, whose ranks then share out the state, too
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = options["mb"] * 1_000_000 // 4
    rows = max(8, count // 2_000_000)
    device = torch.device("cuda" if options["gpu"] else "cpu")
    if options["gpu"]:
        torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(count // rows, device=device)) for _ in range(rows)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    work = torch.randn(150, 150)

    def step() -> None:
        until = time.perf_counter() + options["step_ms"] / 1000
        if options["gpu"]:
            torch.cuda._sleep(int(options["step_ms"] * GPU_CYCLES_OF_A_MILLISECOND))
        while options["busy"] and time.perf_counter() < until:
            work @ work
        time.sleep(max(0.0, until - time.perf_counter()))
        model[0].grad = torch.ones_like(model[0])  # a step of the whole would take as long as the step
        optimizer.step()
        if options["gpu"]:
            torch.cuda.synchronize()

    result: dict[str, Any] = {"memcpy": _copy_seconds(options["mb"] * 1_000_000 // hvd.size()), "ways": {}}
    for number in range(options["rounds"]):
        for way in WAYS:
            folder = f"{options['folder']}/{number}-{WAYS.index(way)}"
            hvd.barrier()
            times = _steps(way, folder, model, optimizer, step, options)
            result["ways"].setdefault(way, []).append(times)
    if hvd.rank() == 0:
        with open(f"{options['folder']}/plain", "wb") as stream:
            began = time.perf_counter()
            torch.save(model.state_dict(), Throttled(stream, options["rate"]) if options["rate"] else stream)
            result["torch.save"] = time.perf_counter() - began
    hvd.barrier()
    result["checked"] = _checked(f"{options['folder']}/checked", model, optimizer)
    return result


def _steps(
    way: str, folder: str, model: Any, optimizer: Any, step: Callable[[], None], options: dict[str, Any]
) -> dict[str, list[float]]:
    """Trains. Returns the seconds of each step with its checkpoint, and which had one; the first is not counted."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    import spark_estimator.torch as hvd
    from spark_estimator.checkpoint import Checkpointer

    checkpointer: Any = None
    pending: Any = None
    if way.startswith("ours"):
        store = ThrottledStore(folder)
        store.rate = options["rate"]
        overlap = "False" not in way
        checkpointer = Checkpointer(
            store, model=model, every_steps=options["every"], optimizer=optimizer, overlap=overlap
        )
        checkpointer.step()
        checkpointer._copier.staging.get_targets(
            0
        )  # the memory is there, as it is after the first seconds of a training
        for _ in range(options["every"] - 1):
            checkpointer.step()
        step()
    times, made = [], []
    for number in range(options["steps"]):
        began = time.perf_counter()
        due = number % options["every"] == 0 and way != "none"
        if checkpointer is not None:
            due = checkpointer.step()
        elif due and all(hvd.allgather_object(pending is None or pending.done())):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                writer = throttled_writer(f"{folder}-{number}", options["rate"])
                pending = async_save({"model": model.state_dict()}, storage_writer=writer)
        else:
            due = False
        step()
        times.append(time.perf_counter() - began)
        made.append(float(due))
    if checkpointer is not None:
        pid = checkpointer.writer_pid
        checkpointer.abandon()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # what it writes is not looked at
    elif pending is not None:
        pending.result()
    return {"times": times, "made": made}


def _checked(folder: str, model: Any, optimizer: Any) -> bool:
    import torch

    from spark_estimator.checkpoint import Checkpointer, load

    with Checkpointer(folder, model=model, optimizer=optimizer) as checkpointer:
        checkpointer.save()
    state = load(folder)["model"]
    return all(torch.equal(state[name], value.cpu()) for name, value in model.state_dict().items())


def _copy_seconds(size: int) -> float:
    """The fastest of some copies of this number of bytes."""
    import numpy

    source, target = numpy.ones(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        numpy.copyto(target, source)
        times.append(time.perf_counter() - began)
    return min(times)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--np", type=positive, default=1, help="ranks on this machine")
    parser.add_argument("--mb", type=positive, default=400, help="megabytes of the state")
    parser.add_argument("--rate", type=float, default=5.0, help="megabytes a second that the store takes; 0: no limit")
    parser.add_argument("--steps", type=positive, default=40, help="of each way in a round")
    parser.add_argument("--every", type=positive, default=10, help="steps between two checkpoints")
    parser.add_argument("--step-ms", type=positive, default=100, help="milliseconds of a step")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--busy", action="store_true", help="the host computes in its steps")
    parser.add_argument("--gpu", action="store_true", help="the model is on a GPU")
    parser.add_argument("--folder", help="where the store is; default: a temporary folder")
    options = vars(parser.parse_args(arguments))
    ranks = options.pop("np")
    options["rate"] *= 1_000_000
    folder = tempfile.mkdtemp(prefix="checkpoint-benchmark", dir=options["folder"])
    options["folder"] = folder
    try:
        result = HorovodRunner(np=-ranks).run(measure, options=options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if not result["checked"]:
        raise SystemExit("the checkpoint does not hold the model's numbers")
    print(f"{options['mb']} MB on {ranks} rank(s); a copy of a rank's share takes {result['memcpy'] * 1000:.0f} ms")
    # A round's own steps without checkpoints are compared with its other ways.
    plain = [statistics.median(times["times"]) for times in result["ways"]["none"]]
    totals = [sum(times["times"]) for times in result["ways"]["none"]]
    print(f"{'way':24} {'checkpoints':>11} {'blocked, ms: median':>20} {'longest':>8} {'all steps':>10}")
    for way, rounds in result["ways"].items():
        blocked = [
            1000 * (seconds - plain[number])
            for number, times in enumerate(rounds)
            for seconds, made in zip(times["times"], times["made"], strict=True)
            if made
        ]
        share = statistics.median(sum(times["times"]) / total for times, total in zip(rounds, totals, strict=True))
        shown = f"{statistics.median(blocked):20.1f} {max(blocked):8.1f}" if blocked else f"{'':29}"
        print(f"{way:24} {len(blocked):11} {shown} {100 * (share - 1):+9.1f}%")
    print(f"{'torch.save':24} {1:11} {1000 * result['torch.save']:20.1f}")


if __name__ == "__main__":
    with ended_by_signals():
        main()
