"""CUDA tensors' way through the binding, where there is no GPU: CPU tensors pass for tensors on fake ones.

`pretended_gpus` says what of it is real. With the paths of the fakes in the environment (``tests.fake_gpus``) all tests
of this folder run so; ``tests/gpu/check.py`` is for a machine with a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from spark_estimator.torch.collectives import device
from tests.torch.rank_pool import RankPool

WAYS = {
    "nccl": {},
    "staged": {"HOROVOD_GPU_OPERATIONS": "staged"},
    "shared": {"HOROVOD_GPU_OPERATIONS": "shared", "FAKE_CUDA_UUIDS": "a,a"},
}


@pytest.fixture(scope="module")
def on_gpus(fakes: dict[str, str]) -> Iterator[Callable[[int, str], RankPool]]:
    made: dict[tuple[int, str], RankPool] = {}

    def get(size: int, way: str) -> RankPool:
        key = size, way
        if key not in made or not made[key].usable:
            if key in made:
                made[key].close()
            made[key] = RankPool(size, {**fakes, **WAYS[way]})
        return made[key]

    yield get
    for pool in made.values():
        pool.close()


both = pytest.mark.parametrize("way", WAYS)


def gpu_operations() -> int:
    """How many requests of this rank have gone from a GPU so far."""
    counters = context.engine().counters()
    return counters["gpu_operations"] + counters["staged_operations"]


@both
def test_every_form_of_every_op(on_gpus: Callable[[int, str], RankPool], way: str) -> None:
    def check(rank: int) -> None:
        def both_forms(submitted: int, ran: Any) -> None:
            results = hvd.synchronize(submitted)
            for one, other in zip(listed(results), listed(ran), strict=True):
                assert torch.equal(one, other)

        def listed(results: Any) -> list[torch.Tensor]:
            return list(results) if isinstance(results, (list, tuple)) else [results]

        before = gpu_operations()
        given = torch.arange(6.0).view(3, 2) * (rank + 1)
        mine = [given.clone(), torch.full((4,), rank, dtype=torch.int64)]
        assert torch.equal(hvd.allreduce(given), torch.arange(6.0).view(3, 2) * 1.5)
        both_forms(hvd.allreduce_async(given, op=hvd.Sum), torch.arange(6.0).view(3, 2) * 3)
        summed = hvd.grouped_allreduce(mine, op=hvd.Sum)
        both_forms(hvd.grouped_allreduce_async(mine, op=hvd.Sum), summed)
        assert summed[1].tolist() == [1] * 4
        in_place = given.t().clone().t()  # not contiguous: a copy travels and comes back
        assert hvd.allreduce_(in_place, op=hvd.Max) is in_place
        assert torch.equal(in_place, torch.arange(6.0).view(3, 2) * 2)
        rows = torch.full((rank + 1, 2), float(rank))
        assert hvd.allgather(rows).tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        both_forms(hvd.allgather_async(rows), hvd.allgather(rows))
        both_forms(hvd.grouped_allgather_async([rows, given]), hvd.grouped_allgather([rows, given]))
        assert hvd.broadcast(rows[:1], root_rank=1).tolist() == [[1.0, 1.0]]
        received, splits = hvd.alltoall(given, splits=[2, 1])
        assert splits.tolist() == [2, 2] if rank == 0 else [1, 1]
        both_forms(hvd.alltoall_async(given, splits=[2, 1]), (received, splits))
        both_forms(hvd.reducescatter_async(given, op=hvd.Sum), hvd.reducescatter(given, op=hvd.Sum))
        sparse = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,))
        total = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)()
        assert total.to_dense().tolist() == [1.0, 1.0, 4.0, 0.0]
        wanted = torch.ones(3, requires_grad=True)
        hvd.allreduce(wanted, op=hvd.Sum).sum().backward()
        assert wanted.grad is not None and wanted.grad.tolist() == [2.0] * 3
        assert gpu_operations() - before == 18  # each of these

    on_gpus(2, way).run(check)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    embedding = nn.EmbeddingBag(9, 4, sparse=True)
    return nn.ModuleList([embedding, nn.Linear(4, 300), nn.Linear(300, 3), nn.Linear(2, 2)])


def loss_of(parts: Any, rank: int, step: int, *, unused: bool) -> torch.Tensor:
    torch.manual_seed(10 * step + rank)
    hidden = parts[0](torch.randint(9, (6, 3)))
    out = parts[2](torch.tanh(parts[1](hidden))).square().mean()
    loss: torch.Tensor = out + (0.0 if unused else parts[3](torch.randn(5, 2)).abs().mean())
    return loss


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sum": {"op": hvd.Sum},
    "small buckets": {"groups": 4},
    "half": {"compression": hvd.Compression.bf16},
    "predivide": {"gradient_predivide_factor": 2.0},
    "as dense": {"sparse_as_dense": True},
}


@both
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("unused", [False, True])
def test_gradients_are_those_of_both_ranks(
    on_gpus: Callable[[int, str], RankPool], way: str, options: str, unused: bool
) -> None:
    """Rank 1 may leave a layer out: zeros travel for it, and flags say so."""

    def check(rank: int) -> None:
        ours, reference = model(), model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(ours.parameters(), lr=0.05), ours.named_parameters(), **OPTIONS[options]
        )
        plain = torch.optim.SGD(reference.parameters(), lr=0.05)
        factor = 1.0 if OPTIONS[options].get("op") is hvd.Sum else 0.5
        before = gpu_operations()
        for step in range(4):
            optimizer.zero_grad()
            loss_of(ours, rank, step, unused=unused and rank == 1).backward()
            optimizer.step()
            plain.zero_grad()
            losses = [loss_of(reference, other, step, unused=unused and other == 1) for other in range(2)]
            (sum(losses) * factor).backward()  # type: ignore[attr-defined]
            plain.step()
        tolerance = 2e-2 if options == "half" else 1e-5
        for mine, right in zip(ours.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(mine, right, rtol=tolerance, atol=tolerance)
        assert gpu_operations() >= before + 4

    on_gpus(2, way).run(check)


@pytest.mark.parametrize(
    "options",
    [
        {"shard_state": True},
        {"compression": hvd.Compression.topk(ratio=0.1, dense_steps=1)},
        {"compression": hvd.Compression.powersgd(rank=2, dense_steps=1)},
        {"op": hvd.Adasum},
        {"backward_passes_per_step": 2},
    ],
    ids=["shards", "topk", "powersgd", "adasum", "passes"],
)
def test_ranks_stay_alike(on_gpus: Callable[[int, str], RankPool], options: dict[str, Any]) -> None:
    def check(rank: int) -> list[float]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(20, 80), nn.Tanh(), nn.Linear(80, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters(), **options)
        before = gpu_operations()
        for step in range(6):
            optimizer.zero_grad()
            for _ in range(options.get("backward_passes_per_step", 1)):
                torch.manual_seed(10 * step + rank)
                net(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
        assert gpu_operations() > before
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
        flat = torch.cat([param.detach().view(-1) for param in net.parameters()])
        return [float(flat.sum()), float(flat.square().sum())]

    one, other = on_gpus(2, "nccl").run(check)
    assert one == other


def test_a_bucket_waits_for_all_streams_of_its_gradients(on_gpus: Callable[[int, str], RankPool]) -> None:
    """A layer whose forward ran on another stream has its gradient computed there, before the bucket is handed over."""

    def check(rank: int) -> None:
        from tests import fake_gpus
        from tests.torch import pretended_gpus

        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1), net.named_parameters())
        main, branch = pretended_gpus.current(), fake_gpus.new_stream()
        # As autograd does for the nodes of a branch.
        net[1].weight.register_hook(lambda _: pretended_gpus.make_current(branch))
        net[0].weight.register_hook(lambda _: pretended_gpus.make_current(main))
        for step in range(3):
            pretended_gpus.noted.clear()
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            pretended_gpus.make_current(0)
            optimizer.step()
            waits = [streams for what, streams in pretended_gpus.noted if what == "wait_for_streams"]
            assert step == 0 or waits == [{branch}], (step, waits)

    on_gpus(2, "nccl").run(check)


def test_what_is_awaited_on_another_stream_is_told_to_the_allocator(on_gpus: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> None:
        from tests import fake_gpus
        from tests.torch import pretended_gpus

        other = fake_gpus.new_stream()
        for submit in (hvd.allreduce_async, hvd.allgather_async):
            for there in (False, True):
                pretended_gpus.noted.clear()
                handle = submit(torch.ones(5))
                assert not pretended_gpus.noted
                pretended_gpus.make_current(other if there else 0)
                assert hvd.synchronize(handle).sum() in (5, 10)
                pretended_gpus.make_current(0)
                assert pretended_gpus.noted == [("_note_use", there)]

    on_gpus(2, "nccl").run(check)


def test_batch_norm_and_states(on_gpus: Callable[[int, str], RankPool]) -> None:
    def check(rank: int) -> None:
        torch.manual_seed(0)
        batches = [torch.randn(6, 4), torch.randn(1, 4)]
        together = nn.BatchNorm1d(4)
        right = together(torch.cat(batches))
        ours = hvd.SyncBatchNorm(4)
        before = gpu_operations()
        got = ours(batches[rank].requires_grad_())
        torch.testing.assert_close(got, right.split([6, 1])[rank])
        got.square().sum().backward()
        assert gpu_operations() == before + 2
        torch.testing.assert_close(ours.running_var, together.running_var)
        with pytest.raises(ValueError, match="all ranks together gave 0 values"):
            ours(torch.empty(0, 4))

        # A learning rate and counters that are tensors, as of a capturable optimizer.
        param = nn.Parameter(torch.full((3,), float(rank)))
        optimizer = torch.optim.Adam([param], lr=torch.tensor(0.1 * (rank + 1)), capturable=False, foreach=False)
        if rank == 0:
            param.grad = torch.ones(3)
            optimizer.step()
        hvd.broadcast_parameters([param], root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
        assert optimizer.state[param]["exp_avg"].tolist() == pytest.approx([0.1] * 3)

    on_gpus(2, "nccl").run(check)


# --- where a tensor is worked on: decided in this process, with tensors that say what they are ------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., torch.Tensor]]:
    """In a job of one: makes tensors that pass for tensors on a CUDA device of that number, but are not looked into."""
    numbers: dict[int, int] = {}
    monkeypatch.setattr(device, "cuda_device", lambda tensor: numbers.get(id(tensor), device.NO_DEVICE))
    made = []

    def make(number: int) -> torch.Tensor:
        tensor = torch.ones(2)
        made.append(tensor)
        numbers[id(tensor)] = number
        return tensor

    hvd.init()
    yield make
    hvd.shutdown()


def test_tensors_of_one_group_are_on_one_device(alone: Callable[..., torch.Tensor]) -> None:
    on_gpu, other, on_host = alone(0), alone(1), torch.ones(2)
    assert device.location_of([on_host, "no tensor"], "allreduce", None) == device.IN_HOST_MEMORY
    assert device.location_of([on_gpu, on_gpu], "allreduce", None).engines_device == 0
    for mixed in ([on_gpu, on_host], [on_host, on_gpu], [on_gpu, other]):
        with pytest.raises(ValueError, match=r"on rank 0: tensor 0 of the group is on .* and tensor 1 on"):
            device.location_of(mixed, "grouped_allreduce", None)
        assert device.location_of_all(mixed, None) == device.IN_HOST_MEMORY  # where copies will do


def test_a_second_gpu_of_a_rank_goes_through_the_host(
    alone: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(device, "_told", set())
    monkeypatch.setattr(device._log, "warning", lambda text, *args: warnings.append(text % args))
    assert device.location_of_all([alone(1)], None).number == 1
    for _ in range(2):
        assert not device.location_of_all([alone(0)], None).on_gpu
    [warning] = warnings
    assert "cuda:0 are copied through host memory" in warning
    assert device.location_of_all([alone(1)], None).number == 1


def test_copies_can_be_asked_for(alone: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "copy")
    hvd.init()
    assert not device.location_of([alone(0), torch.ones(1)], "grouped_allreduce", None).on_gpu
    assert not device.location_of_all([alone(0)], None).on_gpu


def test_a_stream_that_is_being_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match=r"allgather: the current stream is being captured into a CUDA graph"):
        device.TensorLocation(torch.device("cuda", 0), 0, 0).gpu("allgather")
    assert device.IN_HOST_MEMORY.gpu("allgather") is None


def test_what_counts_as_a_cuda_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Says(torch.Tensor):
        is_cuda = True

        def get_device(self) -> int:
            return 3

    tensor = torch.ones(1).as_subclass(Says)
    assert device.cuda_device(tensor) == 3
    assert device.cuda_device(torch.ones(1)) == device.cuda_device(7) == device.NO_DEVICE
    monkeypatch.setattr(device, "_IS_ROCM", True)
    assert device.cuda_device(tensor) == device.NO_DEVICE


def test_the_default_stream_is_waited_for_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is 0, which ``torch.cuda.ExternalStream`` takes for none: it would make another stream."""
    waited: list[str] = []

    class Current:
        def wait_stream(self, stream: str) -> None:
            waited.append(stream)

    def external(address: int, device: int) -> str:
        assert address, "a stream that nobody has used"
        return f"{address} of {device}"

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current())
    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    device.wait_for_streams(3, [7, 0])
    assert waited == ["7 of 3", "default of 3"]
