"""One replica of the benchmark's model under torchft, which `torchft_job` starts with torchft's own Python.

``python -m benchmarks.recovery.torchft_rank FOLDER RANK SIZE STEPS STEP_MS`` trains until STEPS steps are committed.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.recovery.training import ALL, BATCH, BATCHES, LAST, PID, WIDTH, counts

_TIMEOUT = timedelta(seconds=10)


def main(folder: str, rank: int, size: int, steps: int, step_ms: float) -> None:
    """Returns when all steps are made."""
    torchft: Any = importlib.import_module("torchft")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 1))
    adam = torch.optim.Adam(net.parameters(), 1e-3)

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=_TIMEOUT),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        timeout=_TIMEOUT,
        replica_id=f"replica {rank}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    optimizer = torchft.Optimizer(manager, adam)
    row = counts(folder, size)[rank]
    while manager.current_step() < steps:
        row[PID], row[BATCHES], row[ALL] = os.getpid(), row[BATCHES] + 1, row[ALL] + 1
        row[LAST] = time.monotonic_ns()
        inputs = torch.randn(BATCH, WIDTH)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs).reshape(-1), inputs.sum(dim=1))
        time.sleep(step_ms / 1000)
        loss.backward()
        # Not by torchft's DistributedDataParallel, whose hook fails an assertion when a replica is lost (0.2.0).
        gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        joint = parameters_to_vector(gradients)
        manager.allreduce(joint).wait()
        vector_to_parameters(joint, gradients)
        optimizer.step()
    print(f"replica {rank}: {manager.current_step()} steps, {manager.batches_committed()} batches", flush=True)
    os._exit(0)  # the manager's threads would wait for the other replicas


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
