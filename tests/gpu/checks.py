"""What ``check.py`` has ranks with real GPUs try: each function raises where something is not right.

All run in one job after the other, on one rank or more. Values are small whole numbers, so that results are compared
exactly with what the CPU computes in float64.
"""

from __future__ import annotations

import time

import torch
from torch import nn

import spark_estimator.torch as hvd
from spark_estimator.collectives import context
from tests.gpu.in_rank import Task
from tests.gpu.tensors import DTYPES, check_equal, everyone, on_gpu


def every_op_of_every_type() -> None:
    """All ops, blocking and not, in place and not, in groups, ragged, in all types."""
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        all_given = everyone((2 * size + 1, 3), dtype)
        mine = on_gpu(all_given[rank], dtype)
        sums = all_given.amax(0) if dtype is torch.bool else all_given.sum(0)
        check_equal(hvd.allreduce(mine, op=hvd.Sum), sums, (dtype, "sum"))
        check_equal(hvd.allreduce_(mine.clone(), op=hvd.Min), all_given.amin(0), (dtype, "min"))
        check_equal(hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Max)), all_given.amax(0), (dtype, "max"))
        if dtype is not torch.bool:
            product = all_given.to(dtype).double().prod(0)
            if dtype is not torch.uint8:
                check_equal(hvd.allreduce(mine, op=hvd.Product), product, (dtype, "product"))
            scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5)
            if dtype.is_floating_point:
                check_equal(scaled, sums, (dtype, "scaled"))
                check_equal(hvd.allreduce(mine * size), sums, (dtype, "average"))
        pair = [mine, on_gpu(all_given[rank, 0] != 0, torch.bool)]
        grouped = hvd.grouped_allreduce(pair, op=hvd.Sum)
        check_equal(grouped[0], sums, (dtype, "group"))
        check_equal(grouped[1], (all_given[:, 0] != 0).amax(0), (dtype, "bools of the group"))
        rows = [on_gpu(all_given[other, : other + 1], dtype) for other in range(size)]
        joined = torch.cat([all_given[other, : other + 1] for other in range(size)])
        check_equal(hvd.allgather(rows[rank]), joined, (dtype, "gather"))
        check_equal(hvd.synchronize(hvd.allgather_async(mine[:0])), joined[:0], (dtype, "nothing gathered"))
        check_equal(hvd.broadcast(mine, size - 1), all_given[size - 1], (dtype, "broadcast"))
        check_equal(hvd.broadcast_(mine.clone(), 0), all_given[0], (dtype, "broadcast in place"))
        received, counts = hvd.alltoall(mine, splits=[2] * (size - 1) + [3])
        taken = slice(2 * rank, 2 * rank + (3 if rank == size - 1 else 2))
        right = torch.cat([all_given[other, taken] for other in range(size)])
        check_equal(received, right, (dtype, "all to all"))
        assert counts.tolist() == [3 if rank == size - 1 else 2] * size
        if dtype is not torch.bool:
            shares = [3 if other == 0 else 2 for other in range(size)]
            check_equal(hvd.reducescatter(mine, op=hvd.Sum), sums.split(shares)[rank], (dtype, "scatter"))
    sideways = on_gpu(everyone((4, 6), torch.float32)[rank], torch.float32).t()
    check_equal(hvd.allreduce_(sideways, op=hvd.Sum), everyone((4, 6), torch.float32).sum(0).t(), "not contiguous")
    large = torch.full((25_000_000,), float(rank + 1), device="cuda")
    check_equal(hvd.allreduce_(large, op=hvd.Sum)[::100_000], torch.full((250,), size * (size + 1) / 2.0), "100 MB")
    if size & (size - 1) == 0:
        same = hvd.allreduce(torch.ones(100, device="cuda"), op=hvd.Adasum)
        torch.testing.assert_close(same, torch.ones(100, device="cuda"))


def memory_that_is_given_back_early() -> None:
    """Tensors without references while they are in flight, and others that would reuse their memory."""
    for turn in range(50):
        value = float(turn % 7)
        tensor = torch.full((1 << 20,), value, device="cuda")
        handle = hvd.allreduce_async(tensor, op=hvd.Sum, name=f"turn {turn}")
        gathered = hvd.allgather_async(torch.full((1 << 18,), value, device="cuda"), name=f"rows {turn}")
        dropped = hvd.allreduce_async(torch.full((1 << 20,), value, device="cuda"), name=f"dropped {turn}")
        del tensor
        thieves = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(3)]
        assert bool((hvd.synchronize(handle) == value * hvd.size()).all()), turn
        assert bool((hvd.synchronize(gathered) == value).all()), turn
        assert dropped > 0 and len(thieves) == 3
    hvd.barrier()


def refusals() -> None:
    """CUDA graphs; tensors here and there."""
    rank, size = hvd.rank(), hvd.size()
    tensor = torch.ones(4, device="cuda")
    hvd.allreduce(tensor)
    if context.settings().gpu_operations == "copy":
        return
    refused = ""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            tensor + 1
            hvd.allreduce(tensor)
    except ValueError as error:
        refused = str(error)
    assert "captured into a CUDA graph" in refused, refused
    try:
        hvd.grouped_allreduce([tensor, torch.ones(4)])
    except ValueError as error:
        assert "cuda:" in str(error) and "cpu" in str(error)
    else:
        raise AssertionError("a group on two devices was taken")
    if size > 1:
        try:
            hvd.allreduce(tensor if rank else tensor.cpu(), name="here and there")
        except hvd.HorovodInternalError as error:
            assert "GPU" in str(error), error
        else:
            raise AssertionError("ranks with tensors here and there were not told")
    check_equal(hvd.allreduce(tensor, op=hvd.Sum), torch.full((4,), float(size)), "afterwards")


def a_graph_beside_the_engine() -> None:
    """A user's CUDA graph is captured while the engine, in its own thread, continues serving GPU and peers."""
    size = hvd.size()
    tensor = torch.full((1000,), 3.0, device="cuda")
    check_equal(hvd.allreduce(tensor, op=hvd.Sum), torch.full((1000,), 3.0 * size), "before")
    torch.cuda.synchronize()
    handle = hvd.allreduce_async(tensor, op=hvd.Sum, name="under way")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = tensor * 2
        time.sleep(2.5)  # more than two heartbeats
    graph.replay()
    check_equal(doubled, torch.full((1000,), 6.0), "of the graph")
    check_equal(hvd.synchronize(handle), torch.full((1000,), 3.0 * size), "under way meanwhile")
    check_equal(hvd.allreduce(doubled, op=hvd.Sum), torch.full((1000,), 6.0 * size), "afterwards")


def states_and_batch_norm() -> None:
    """Starting states; statistics of the joint batch; autograd through collectives."""
    rank, size = hvd.rank(), hvd.size()
    batches = [torch.randn(4 + other, 5, generator=torch.Generator().manual_seed(other)) for other in range(size)]
    together = nn.BatchNorm1d(5).cuda()
    right = together(torch.cat(batches).cuda())
    ours = hvd.SyncBatchNorm(5).cuda()
    got = ours(batches[rank].cuda().requires_grad_())
    torch.testing.assert_close(got, right.split([len(batch) for batch in batches])[rank], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var, together.running_var)
    got.square().sum().backward()
    model = nn.Linear(3, 3).cuda()
    with torch.no_grad():
        model.weight.fill_(rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1 + rank, device="cuda"), capturable=True)
    if rank == 0:
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert float(optimizer.param_groups[0]["lr"]) == torch.tensor(0.1).item()
    assert all(state["exp_avg"].is_cuda and state["step"].is_cuda for state in optimizer.state.values())
    wanted = torch.ones(3, device="cuda", requires_grad=True)
    (hvd.allreduce(wanted, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert wanted.grad is not None
    check_equal(wanted.grad, torch.full((3,), size * (size + 1) / 2.0), "gradient")
    sparse = torch.sparse_coo_tensor([[rank, 7]], [1.0, 2.0], (8,), device="cuda")
    total = hvd.sparse_allreduce_async(sparse, "sparse", hvd.Sum)().to_dense()
    assert total[7] == 2.0 * size and total[rank] == 1.0
    assert hvd.broadcast_object({"on": torch.ones(2, device="cuda")}, 0)["on"].sum() == 2


def joining() -> None:
    """A rank without data takes part with zeros."""
    rank, size = hvd.rank(), hvd.size()
    for turn in range(rank + 1):
        got = hvd.allreduce(torch.ones(3, device="cuda"), op=hvd.Sum, name=f"turn {turn}")
        check_equal(got, torch.full((3,), float(size - turn)), turn)
    assert hvd.join() == size - 1


CHECKS: dict[str, Task] = {
    "every op of every type": every_op_of_every_type,
    "memory that is given back early": memory_that_is_given_back_early,
    "refusals": refusals,
    "a graph beside the engine": a_graph_beside_the_engine,
    "states and batch norm": states_and_batch_norm,
    "joining": joining,
}
