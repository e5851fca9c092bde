"""Trainings on real GPUs that ``check.py`` tries, against plain PyTorch on the joint batch of all ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from tests.gpu.in_rank import Task

STEPS = 6
ROWS = 8


def batch(rank: int, step: int, width: int = 20) -> torch.Tensor:
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(100 * step + rank)).cuda()


def network(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 700), nn.Tanh(), nn.Linear(700, 300), nn.ReLU(), nn.Linear(300, 4)).cuda()


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank, step)).square().mean()
    return loss


def assert_alike(tensors: Iterable[torch.Tensor], what: object) -> None:
    """All ranks have the same bits."""
    digest = hashlib.sha256(b"".join(tensor.detach().float().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()
    digests = hvd.allgather_object(digest)
    assert len(set(digests)) == 1, (what, digests)


def as_plain_pytorch() -> None:
    """SGD, Adam and fused Adam, with several ways to exchange, equal one process with all ranks' batches."""
    made: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        "adam": lambda params: torch.optim.Adam(params, lr=1e-3),
        "fused": lambda params: torch.optim.Adam(params, lr=1e-3, fused=True),
        "capturable": lambda params: torch.optim.Adam(params, lr=1e-3, capturable=True),
    }
    options: list[dict[str, Any]] = [
        {}, {"groups": 5}, {"gradient_predivide_factor": 2.0},
        {"backward_passes_per_step": 2}, {"compression": hvd.Compression.bf16},
    ]  # fmt: skip
    for name, make in made.items():
        for keywords in options if name in ("sgd", "adam") else options[:1]:
            ours, reference = network(), network()
            optimizer = hvd.DistributedOptimizer(make(ours.parameters()), ours.named_parameters(), **keywords)
            plain = make(reference.parameters())
            passes = keywords.get("backward_passes_per_step", 1)
            for step in range(STEPS):
                optimizer.zero_grad()
                plain.zero_grad()
                for number in range(passes):
                    loss_of(ours, hvd.rank(), passes * step + number).backward()
                    losses = [loss_of(reference, rank, passes * step + number) for rank in range(hvd.size())]
                    torch.stack(losses).mean().backward()
                optimizer.step()
                plain.step()
            loose = 2e-2 if "compression" in keywords else 1e-3
            for mine, right in zip(ours.parameters(), reference.parameters(), strict=True):
                assert torch.allclose(mine, right, rtol=loose, atol=loose), (name, keywords, (mine - right).abs().max())
            assert_alike(ours.parameters(), (name, keywords))


def left_out_and_sparse() -> None:
    """A layer that one rank does not use, one that none uses, and an embedding with sparse gradients."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.table = nn.Embedding(50, 20, sparse=True)
            self.body, self.some, self.none = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20)

        def forward(self, places: torch.Tensor, uses: bool) -> torch.Tensor:
            hidden = self.body(self.table(places))
            return (self.some(hidden) if uses else hidden).square().mean()

    ours, reference = Parts().cuda(), Parts().cuda()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1), ours.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(STEPS):
        places = [torch.arange(6).cuda() * (step + rank + 1) % 50 for rank in range(hvd.size())]
        optimizer.zero_grad()
        ours(places[hvd.rank()], hvd.rank() == 0).backward()
        optimizer.step()
        plain.zero_grad()
        torch.stack([reference(each, rank == 0) for rank, each in enumerate(places)]).mean().backward()
        plain.step()
    rows = ours.table.weight.grad
    assert ours.none.weight.grad is None and rows is not None and rows.is_sparse
    for mine, right in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4)


def other_compressions() -> None:
    """float16, int8, Adasum: all ranks stay alike, and the loss falls."""
    options: list[dict[str, Any]] = [
        {"compression": hvd.Compression.fp16},
        {"compression": hvd.Compression.int8},
        {"op": hvd.Adasum},
    ]
    for keywords in options:
        if "op" in keywords and hvd.size() & (hvd.size() - 1):
            continue
        model = network()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), **keywords
        )
        first = float(loss_of(model, 0, 0))
        for _ in range(20):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), hvd.rank()).backward()
            optimizer.step()
        assert_alike(model.parameters(), keywords)
        assert float(loss_of(model, 0, 0)) < first, keywords


def local_steps() -> None:
    """Parameters of a GPU that are exchanged through host memory, at once and while steps are made."""
    for keywords in ({}, {"fragments": 2, "delay": 1}):
        model = network()
        optimizer: Any = hvd.DiLoCo(
            torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters(), inner_steps=4, **keywords
        )
        first = float(loss_of(model, 0, 0))
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), hvd.rank()).backward()
            optimizer.step()
        optimizer.synchronize()
        assert_alike(model.parameters(), keywords)
        assert float(loss_of(model, 0, 0)) < first, keywords


def with_a_grad_scaler() -> None:
    """A rank whose gradients overflow makes all skip the step; unscaling and clipping after ``synchronize()``."""
    for fused in (False, True):
        model = network()
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused), model.named_parameters()
        )
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=1000)
        for step in range(STEPS):
            before = [param.detach().clone() for param in model.parameters()]
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = loss_of(model, hvd.rank(), step)
            overflows = step == 2 and hvd.rank() == hvd.size() - 1
            scaler.scale(loss * (float("inf") if overflows else 1.0)).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            moved = any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
            assert moved == (step != 2), (fused, step)
            assert_alike(model.parameters(), (fused, step))
        assert scaler.get_scale() == 512.0


def branches_on_other_streams() -> None:
    """Layers whose forward runs on a separate stream: so does their backward, while buckets fill."""
    ours, reference = network(), network()
    side = torch.cuda.Stream()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.05), ours.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        hidden = ours[1](ours[0](batch(hvd.rank(), step)))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            hidden = ours[3](ours[2](hidden))
        torch.cuda.current_stream().wait_stream(side)
        ours[4](hidden).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        torch.stack([loss_of(reference, rank, step) for rank in range(hvd.size())]).mean().backward()
        plain.step()
    for mine, right in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4)


def without_exchange_alone() -> None:
    """One rank's optimizer starts no exchange at all."""
    if hvd.size() > 1:
        return
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    before = context.engine().read_counter("requests")
    loss_of(model, 0, 0).backward()
    optimizer.step()
    assert context.engine().read_counter("requests") == before


class Branches(nn.Module):
    """Layers side by side, each computed on a separate, late stream, forward and backward."""

    def __init__(self, streams: Sequence[torch.cuda.Stream | None], late: int) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 10)) for _ in range(4 * len(streams))
        )
        self._streams, self._late = streams, late

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        parts = []
        for number, layer in enumerate(self.layers):
            stream = self._streams[number % len(self._streams)]
            if stream is None:
                parts.append(layer(rows))
                continue
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(self._late)
                parts.append(layer(rows))
                parts[-1].register_hook(self._be_late)  # runs on the stream that the layer ran on
        for stream in filter(None, self._streams):
            torch.cuda.current_stream().wait_stream(stream)
        return torch.stack(parts).sum(0)

    def _be_late(self, gradient: torch.Tensor) -> None:
        torch.cuda._sleep(self._late)


def buckets_from_side_streams() -> None:
    """Many small buckets, submitted from three streams that are late; gradients compared with those in float64."""
    variable = "SPARK_ESTIMATOR_BUCKET_BYTES"
    before = os.environ.get(variable)
    hvd.shutdown()
    os.environ[variable] = "20000"  # of a layer's two weights there are 12 KB
    try:
        hvd.init()
        _train_branches()
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


def _train_branches() -> None:
    ours = Branches([None, torch.cuda.Stream(), torch.cuda.Stream()], 300_000).cuda()
    reference = Branches([None] * 3, 0).double()
    reference.load_state_dict({name: value.cpu() for name, value in ours.state_dict().items()})
    sgd = torch.optim.SGD(ours.parameters(), lr=0.05)
    optimizer: Any = hvd.DistributedOptimizer(sgd, ours.named_parameters())
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(STEPS):
        requests = context.engine().read_counter("requests")
        optimizer.zero_grad()
        ours(batch(hvd.rank(), step, 40)).square().mean().backward()
        optimizer.synchronize()
        plain.zero_grad()
        losses = [reference(batch(rank, step, 40).cpu().double()).square().mean() for rank in range(hvd.size())]
        torch.stack(losses).mean().backward()
        for (name, mine), right in zip(ours.named_parameters(), reference.parameters(), strict=True):
            assert mine.grad is not None and right.grad is not None, (step, name)
            what = f"step {step}, {name}: " + "{}"
            got = mine.grad.double().cpu()
            torch.testing.assert_close(got, right.grad, rtol=1e-3, atol=1e-5, msg=what.format)
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
        made = context.engine().read_counter("requests") - requests
        assert hvd.size() == 1 or made >= 4, f"step {step} made {made} requests: too few buckets"


TRAININGS: dict[str, Task] = {
    "as plain PyTorch": as_plain_pytorch,
    "left out and sparse": left_out_and_sparse,
    "other compressions": other_compressions,
    "local steps": local_steps,
    "with a GradScaler": with_a_grad_scaler,
    "branches on other streams": branches_on_other_streams,
    "buckets from side streams": buckets_from_side_streams,
    "no exchange for one rank": without_exchange_alone,
}
