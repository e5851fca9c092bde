"""Slow ranks are named on the driver, with the cause: in real jobs of two ranks, of which rank 1 is slow."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from benchmarks.namespaces import Network, UnavailableError, remote_shell
from spark_estimator.data.batch_loader import BaseDataLoader
from spark_estimator.launch.job import monitor
from spark_estimator.runner import run

_SECONDS = 0.02
_MOST_SECONDS = 200.0


def train_until_stopped(cause: str, stop: str, width: int) -> None:
    """Train until there is the file `stop`; rank 1 is slow, but by its link, which it does not know of."""
    hvd.init()
    torch.set_num_threads(1)

    def rest(what: str) -> None:
        if hvd.rank() == 1 and what == cause:
            time.sleep(_SECONDS)

    class Loader(BaseDataLoader):
        def _iterate(self) -> Iterator[torch.Tensor]:
            batch = torch.ones(8, width)
            while True:
                rest("input")
                yield batch

    model = torch.nn.Linear(width, width)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.001))
    began = time.monotonic()
    for number, batch in enumerate(Loader()):
        if number % 10 == 0:
            is_over = Path(stop).exists() or time.monotonic() - began > _MOST_SECONDS
            if hvd.allreduce(torch.tensor(float(is_over)), op=hvd.Sum, name="is over"):
                return
        optimizer.zero_grad()
        rest("processor")
        model(batch).square().mean().backward()
        optimizer.step()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The launcher's lines on ranks, of which one ends the training."""
    lines: list[str] = []

    def announce(text: str) -> None:
        if text.startswith("rank "):
            lines.append(text)
            (tmp_path / "stop").touch()

    monkeypatch.setattr(monitor, "announce", announce)
    return lines


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cause", ["input", "processor"])
def test_a_slow_rank_is_named_with_its_cause(cause: str, lines: list[str], tmp_path: Path) -> None:
    run(train_until_stopped, args=(cause, str(tmp_path / "stop"), 64), num_proc=2)
    assert lines and re.match(
        rf"rank 1 \(host .*\) is slow because of its {cause}, and each step \d+% longer", lines[0]
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_slow_link_is_named(lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare and nsenter are needed")
    try:
        opened = Network.open(2)
    except UnavailableError as error:
        pytest.skip(str(error))
    with opened as network:
        network.hosts[1].limit_sending(100_000_000)
        monkeypatch.setenv("SPARK_ESTIMATOR_SSH_COMMAND", remote_shell(tmp_path, network.hosts))
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        where: dict[str, Any] = {"hosts": "host0:1,host1:1", "network_interfaces": "eth0"}
        run(train_until_stopped, args=("link", str(tmp_path / "stop"), 500), num_proc=2, **where)
    assert lines and re.match(r"rank 1 \(host host1\) is slow because of its link, and each step \d+% longer", lines[0])
