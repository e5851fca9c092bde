"""Programs for torchrun, with DDP or Accelerate, and for PySpark's TorchDistributor run here unchanged, and equally.

Each runs under its own launcher, too, and what both wrote is compared.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_estimator import HorovodRunner

pytest.importorskip("torch")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DDP = """
import argparse, os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("folder")
    options = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    assert os.environ["RANK"] == str(rank) and int(os.environ["WORLD_SIZE"]) == dist.get_world_size()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(7)
    features = torch.randn(64, 4)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        torch.save(model.module.state_dict(), f"{options.folder}/model.pt")
    dist.barrier()
    weights = torch.load(f"{options.folder}/model.pt", weights_only=True)
    with open(f"{options.folder}/rank{rank}", "w") as file:
        file.write(f"{dist.get_world_size()} {total.item():.6f} {weights['weight'].sum().item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def main():
    set_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    features = torch.randn(48, 4)
    data = torch.utils.data.TensorDataset(features, features.sum(1, keepdim=True))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    accelerator.wait_for_everyone()
    weight = accelerator.unwrap_model(model).weight.sum().item()
    with open(f"{sys.argv[-1]}/rank{accelerator.process_index}", "w") as file:
        file.write(f"{accelerator.num_processes} {losses.sum().item():.6f} {weight:.6f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
"""

# As in the notebooks of Databricks' documentation; the first cell imports TorchDistributor.
CELLS = (
    """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
""",
    """
import os
import re


def main_fn(directory, epochs, *, learning_rate):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    dist.init_process_group("gloo")
    local_rank, global_rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])
    torch.manual_seed(5)
    features = torch.randn(64, 4)
    data = TensorDataset(features, features.sum(1, keepdim=True))
    sampler = DistributedSampler(data, num_replicas=dist.get_world_size(), rank=global_rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
    if global_rank == 0:
        torch.save(model.module.state_dict(), os.path.join(directory, "model.pt"))
    world_size = dist.get_world_size()
    dist.destroy_process_group()
    return world_size, round(loss.item(), 6), local_rank
""",
    """
import tempfile

directory = tempfile.mkdtemp()
result = TorchDistributor(num_processes=2, local_mode=LOCAL, use_gpu=False).run(
    main_fn, directory, 2, learning_rate=0.1
)
""",
    """
import torch

weights = torch.load(os.path.join(directory, "model.pt"), weights_only=True)
print("result", result, round(weights["weight"].sum().item(), 6))
""",
)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }


def succeeded(command: list[str]) -> str:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def written(folder: Path) -> list[str]:
    texts = [(folder / f"rank{rank}").read_text() for rank in range(2)]
    assert texts[0].startswith("2 ")
    return texts


@pytest.mark.parametrize("program", [pytest.param(DDP, id="DDP"), pytest.param(ACCELERATE, id="accelerate")])
def test_a_script(program: str, spark: Any, tmp_path: Path) -> None:
    if program is ACCELERATE:
        pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(program)
    folders = [tmp_path / name for name in ("theirs", "horovodrun", "spark")]
    for folder in folders:
        folder.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    succeeded([*torchrun, str(script), str(folders[0])])
    horovodrun = [sys.executable, "-m", "spark_estimator.launch.cli.main", "-np", "2"]
    succeeded([*horovodrun, sys.executable, str(script), str(folders[1])])
    HorovodRunner(np=2).run(str(script), str(folders[2]))
    theirs = written(folders[0])
    assert written(folders[1]) == theirs
    assert written(folders[2]) == theirs


@pytest.mark.parametrize("local_mode", [True, False])
def test_a_notebook_of_torch_distributor(local_mode: bool) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")

    def last_line(imported: str) -> str:
        cells = [f"from {imported} import TorchDistributor\nLOCAL = {local_mode}", *CELLS]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
        nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3").execute(env=environment())
        shown = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
        return next(line for line in shown.splitlines() if line.startswith("result"))

    pattern = re.compile(r"result \((\d+), ([\d.]+), (\d)\) ([\d.]+)")
    theirs, ours = (pattern.fullmatch(last_line(name)) for name in ("pyspark.ml.torch.distributor", "spark_estimator"))
    assert theirs is not None and ours is not None
    # In its local mode TorchDistributor returns the value of the rank that ends last; here it is rank 0's.
    assert (ours[1], ours[4]) == (theirs[1], theirs[4]) and ours[3] == "0"
    assert theirs[3] == "1" or ours[2] == theirs[2]
