"""Times the engine's collectives against gloo (as torch.distributed has it), in the same processes, in turns.

``python -m spark_estimator.benchmarks.collectives [--np 2] [--bytes 4,1024,...] [--tcp]`` prints a line for each op and
size: the medians in microseconds and gloo's time over ours. Both are called as a user would, from Python, on float32
torch tensors in place; every buffer is written anew before each call, as a training step does, outside the clock. A
result that is wrong ends the run.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

OPS = ("allreduce", "broadcast", "allgather")
DEFAULT_BYTES = (4, 1024, 65536, 1 << 20, 16 << 20, 102_400_000)


def measure(sizes: Sequence[int], gloo_address: str, seconds_each: float) -> list[tuple[str, int, float, float, int]]:
    """Runs on every rank.

    Args:
        sizes: bytes of each rank's tensor.
        gloo_address: ``tcp://host:port`` where gloo's ranks meet.
        seconds_each: how long to measure one op at one size.

    Returns:
        rank 0's (op, bytes, our median in us, gloo's median in us, rounds); on the other ranks something of that form.
    """
    import torch
    import torch.distributed as dist

    import spark_estimator.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=gloo_address, rank=hvd.rank(), world_size=hvd.size())

    def calls(op: str, tensor: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
        if op == "allreduce":
            return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name="x"), lambda: dist.all_reduce(tensor)
        if op == "broadcast":
            return lambda: hvd.broadcast_(tensor, 0, name="x"), lambda: dist.broadcast(tensor, 0)
        joined = torch.empty(hvd.size() * tensor.numel())
        return lambda: hvd.allgather(tensor, name="x"), lambda: dist.all_gather_into_tensor(joined, tensor) or joined

    def check(op: str, call: Callable[[], Any], tensor: torch.Tensor) -> None:
        tensor.copy_(torch.arange(tensor.numel()) % 1000 + hvd.rank())
        got = call()
        result = got if op == "allgather" and got is not None else tensor
        base = torch.arange(tensor.numel()) % 1000
        if op == "allreduce":
            expected = base * hvd.size() + sum(range(hvd.size()))
        elif op == "broadcast":
            expected = base
        else:
            expected = torch.cat([base + rank for rank in range(hvd.size())])
        if not torch.equal(result, expected.to(result.dtype)):
            raise SystemExit(f"{op} of {tensor.numel()} elements gives wrong numbers on rank {hvd.rank()}")

    def once(call: Callable[[], Any], tensor: torch.Tensor) -> float:
        tensor.fill_(1.0)
        hvd.barrier()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    lines = []
    for size in sizes:
        for op in OPS:
            tensor = torch.empty(max(1, size // 4))
            ours, gloos = calls(op, tensor)
            check(op, ours, tensor)
            check(op, gloos, tensor)
            mine: list[float] = []
            theirs: list[float] = []
            deadline = time.perf_counter() + seconds_each
            more = torch.ones(1)
            while more.item() > 0:  # all ranks stop in the same round
                for _ in range(5):
                    mine.append(once(ours, tensor))
                    theirs.append(once(gloos, tensor))
                more = hvd.broadcast(torch.tensor([float(time.perf_counter() < deadline)]), 0, name="more")
            lines.append((op, size, statistics.median(mine), statistics.median(theirs), len(mine)))
    dist.destroy_process_group()
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the arguments, runs the ranks on this host, prints the table."""
    from spark_estimator.launch.local import run_local

    parser = argparse.ArgumentParser(prog="python -m spark_estimator.benchmarks.collectives", description=__doc__)
    parser.add_argument("--np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--bytes", default=",".join(map(str, DEFAULT_BYTES)), help="sizes of a rank's tensor")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each op and size")
    parser.add_argument("--tcp", action="store_true", help="without shared memory, as between hosts")
    arguments = parser.parse_args(argv)
    sizes = [int(text) for text in arguments.bytes.split(",")]
    with socket.socket() as probe:  # gloo wants a port that is free on all ranks' host
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    environment = {"SPARK_ESTIMATOR_SHARED_MEMORY": "0"} if arguments.tcp else {}
    lines = run_local(measure, arguments.np, args=(sizes, address, arguments.seconds), environment=environment)
    channel = "TCP and Unix sockets" if arguments.tcp else "shared memory"
    print(f"{arguments.np} ranks on this host, float32, {channel}; medians in us")
    print(f"{'op':10} {'bytes':>11} {'ours':>11} {'gloo':>11} {'gloo/ours':>9} {'rounds':>7}")
    for op, size, ours, gloos, rounds in lines:
        print(f"{op:10} {size:>11} {ours:>11.1f} {gloos:>11.1f} {gloos / ours:>9.2f} {rounds:>7}")


if __name__ == "__main__":
    main()
