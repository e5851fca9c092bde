"""The torch.distributed backend: each collective, every element type."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.torch.in_group import in_group
from tests.torch.rank_pool import RankPool

Op = dist.ReduceOp


INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape or (3,), value, dtype=dtype)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_reduce(two_ranks: RankPool, asynchronous: bool) -> None:
    @in_group
    def check(rank: int, asynchronous: bool) -> None:
        def reduced(tensor: torch.Tensor, op: object = Op.SUM) -> list[float]:
            work = dist.all_reduce(tensor, op, async_op=asynchronous)
            if asynchronous:
                assert work.wait()
                assert work.is_completed()
                assert work.is_success()
            return tensor.tolist()

        for dtype in INTEGERS + FLOATS:
            values = {Op.SUM: 5, Op.MIN: 2, Op.MAX: 3, Op.PRODUCT: 6}
            for op, value in values.items():
                assert reduced(full(rank + 2, dtype=dtype), op) == [value] * 3, (dtype, op)
        for dtype in FLOATS:
            assert reduced(full(rank + 2, dtype=dtype), Op.AVG) == [2.5] * 3
            assert reduced(full(rank + 2, dtype=dtype), Op.PREMUL_SUM(0.5)) == [2.5] * 3
            assert reduced(full(rank + 2, dtype=dtype), Op.PREMUL_SUM(torch.tensor(2.0))) == [10] * 3
        assert reduced(torch.tensor([True, rank == 0, False])) == [True, True, False]
        assert reduced(torch.tensor([True, rank == 0]), Op.MIN) == [True, False]
        assert reduced(full(1 + rank, dtype=torch.complex64) * (1 + 2j)) == [3 + 6j] * 3
        assert reduced(torch.tensor(float(rank))) == 1
        assert reduced(torch.empty(0)) == []

    two_ranks.run(check, asynchronous)


def test_bits_are_joined(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        for op, value in ((Op.BAND, 0b1000), (Op.BOR, 0b1111), (Op.BXOR, 0b1111)):
            tensor = torch.full((2, 2), 0b1000 | 1 << rank)
            dist.all_reduce(tensor, op)
            assert tensor.tolist() == [[value] * 2] * 2
        flags = torch.tensor([True, rank > 0])
        dist.all_reduce(flags, Op.BAND)
        assert flags.tolist() == [True, False]
        tensor = torch.tensor([1 << rank])
        dist.reduce(tensor, 2, Op.BOR)
        assert tensor.item() == (7 if rank == 2 else 1 << rank)
        with pytest.raises(ValueError, match="no bitwise reduction here; use all_reduce"):
            dist.reduce_scatter_tensor(torch.zeros(1), torch.zeros(3), Op.BAND)
        for call in (lambda: dist.all_reduce(torch.ones(1), Op.BOR), lambda: dist.reduce(torch.ones(1), 0, Op.BXOR)):
            with pytest.raises(ValueError, match=r"whole numbers and truth values, not of torch\.float32"):
                call()

    three_ranks.run(check)


def test_memory_of_every_form(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        base = torch.arange(12.0).reshape(3, 4) * (rank + 1)
        expected = torch.arange(12.0).reshape(3, 4) * 3
        column = base[:, 1]
        dist.all_reduce(column)
        assert torch.equal(base[:, 1], expected[:, 1])
        assert torch.equal(base[:, 0], torch.tensor([0.0, 4.0, 8.0]) * (rank + 1))
        dense = base[:, 2:].clone()
        address = dense.data_ptr()
        dist.all_reduce(dense.requires_grad_())
        assert dense.data_ptr() == address
        transposed = base.t()
        dist.broadcast(transposed, 1)
        assert torch.equal(base[:, 3], torch.tensor([6.0, 14.0, 22.0]))
        both = torch.zeros(2, 3, 4).transpose(1, 2)
        dist.all_gather([both[0], both[1]], torch.full((4, 3), float(rank)))
        assert both[1].eq(1).all()
        with pytest.raises(ValueError, match=r"shape \(4,\) and strides \(0,\)"):
            dist.all_reduce(torch.ones(1).expand(4))
        with pytest.raises(ValueError, match="to_dense"):
            dist.all_reduce(torch.eye(2).to_sparse())

    two_ranks.run(check)


def test_what_only_moves_elements_takes_every_type(two_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        types = [torch.bool, torch.complex64, torch.complex128, torch.float8_e5m2, torch.uint16, *INTEGERS, *FLOATS]
        for dtype in types:
            sent = torch.tensor([rank, 1, 0]).to(dtype)
            first, second = torch.tensor([0, 1, 0]).to(dtype), torch.tensor([1, 1, 0]).to(dtype)

            def same(first: torch.Tensor, second: torch.Tensor) -> bool:
                return first.dtype == second.dtype and first.view(torch.uint8).equal(second.view(torch.uint8))

            lists = [torch.zeros(3).to(dtype) for _ in range(2)]
            dist.all_gather(lists, sent)
            assert same(lists[0], first), dtype
            assert same(lists[1], second), dtype
            copy = sent.clone()
            dist.broadcast(copy, 1)
            assert same(copy, second), dtype
            swapped = [torch.zeros(3).to(dtype) for _ in range(2)]
            dist.all_to_all(swapped, [sent, sent])
            assert same(swapped[1], second), dtype
            dist.gather(sent, lists if rank == 0 else None, 0)
            assert same(lists[1], second), dtype
            dist.scatter(copy, [second, first] if rank == 0 else None, 0)
            assert same(copy, first if rank else second), dtype
        with pytest.raises(ValueError, match=r"Quantized tensors \(torch.quint8\) cannot be sent"):
            dist.broadcast(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), 0)
        with pytest.raises(ValueError, match=r"float8_e5m2 cannot be sent"):
            dist.all_reduce(torch.zeros(1).to(torch.float8_e5m2))

    two_ranks.run(check)


def test_reduce(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        tensor = full(rank + 1)
        dist.reduce(tensor, 1)
        assert tensor.tolist() == ([6] * 3 if rank == 1 else [rank + 1] * 3)

    three_ranks.run(check)


def test_all_gather(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        whole = torch.empty(6, 2)
        dist.all_gather_into_tensor(whole, full(rank, 2, 2))
        assert whole[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        uneven = [torch.empty(number) for number in range(3)]
        dist.all_gather(uneven, full(rank, rank))
        assert [each.tolist() for each in uneven] == [[], [1], [2, 2]]
        work = dist.all_gather_into_tensor(torch.empty(3), full(rank, 1), async_op=True)
        assert work.result()[0].tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="2 tensors were given for the 3 ranks"):
            dist.all_gather([torch.empty(1)] * 2, torch.empty(1))
        with pytest.raises(ValueError, match="the output has 5 elements, not the input's 2 for each of 3 ranks"):
            dist.all_gather_into_tensor(torch.empty(5), torch.empty(2))
        with pytest.raises(ValueError, match="one element type"):
            dist.all_gather_into_tensor(torch.empty(6), torch.empty(2, dtype=torch.int32))
        # What cannot be known before: rank 2 gives more than its place takes.
        outputs = [torch.empty(1) for _ in range(3)]
        with pytest.raises(ValueError, match="all_gather: from rank 2 of the group 2 elements came for a tensor of sh"):
            dist.all_gather(outputs, torch.empty(1 + rank // 2))

    three_ranks.run(check)


def test_reduce_scatter(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        output = torch.empty(2)
        dist.reduce_scatter(output, [full(number + rank, 2) for number in range(3)])
        assert output.tolist() == [3 * rank + 3] * 2
        dist.reduce_scatter_tensor(output, torch.arange(6.0) * (rank + 1))
        assert output.tolist() == [12 * rank, 12 * rank + 6]
        dist.reduce_scatter_tensor(output, torch.arange(6.0).reshape(2, 3).t() * (rank + 1), Op.AVG)
        assert output.tolist() == [2 * rank, 2 * rank + 6]
        dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0))
        with pytest.raises(ValueError, match=r"elements and the output 2; they must be 3 parts"):
            dist.reduce_scatter_tensor(output, torch.empty(5))

    three_ranks.run(check)


def test_all_to_all(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        output = torch.empty(3, 2)
        dist.all_to_all_single(output, torch.arange(3.0)[:, None].expand(3, 2) + 10 * rank)
        assert output[:, 1].tolist() == [rank, rank + 10, rank + 20]
        # Rank i sends j rows to rank j.
        rows = torch.full((3, 2), rank, dtype=torch.int16)
        output = torch.empty(3 * rank, 2, dtype=torch.int16)
        dist.all_to_all_single(output, rows, [rank] * 3, [0, 1, 2])
        assert output[:, 0].tolist() == [0] * rank + [1] * rank + [2] * rank
        outputs = [torch.empty(rank + 1) for _ in range(3)]
        dist.all_to_all(outputs, [full(rank, number + 1) for number in range(3)])
        assert [each.tolist() for each in outputs] == [[number] * (rank + 1) for number in range(3)]
        with pytest.raises(ValueError, match=r"input_split_sizes=\[1, 1, 2\] for 3 rows and 3 ranks"):
            dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 1, 1], [1, 1, 2])
        with pytest.raises(ValueError, match="4 rows cannot be divided into 3"):
            dist.all_to_all_single(torch.empty(3), torch.empty(4))

    three_ranks.run(check)


def test_gather_and_scatter(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        gathered = [torch.empty(2, 1) for _ in range(3)] if rank == 2 else None
        dist.gather(full(rank, 2, 1), gathered, dst=2)
        assert gathered is None or [each.sum().item() for each in gathered] == [0, 2, 4]
        tensor = torch.empty(2)
        dist.scatter(tensor, [full(number, 2) for number in range(3)] if rank == 1 else None, src=1)
        assert tensor.tolist() == [rank] * 2

    three_ranks.run(check)


def test_objects(three_ranks: RankPool) -> None:
    @in_group
    def check(rank: int) -> None:
        gathered = [None] * 3
        dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
        assert [each["text"] for each in gathered] == ["", "x", "xx"]
        objects = ["a", {"b": 1}] if rank == 1 else [None, None]
        dist.broadcast_object_list(objects, src=1)
        assert objects == ["a", {"b": 1}]
        gathered = [None] * 3 if rank == 0 else None
        dist.gather_object((rank,), gathered, dst=0)
        assert gathered == ([(0,), (1,), (2,)] if rank == 0 else None)
        mine: list[object] = [None]
        dist.scatter_object_list(mine, [1, "two", [3]] if rank == 0 else None, src=0)
        assert mine == [[1, "two", [3]][rank]]

    three_ranks.run(check)


def test_several_at_once(two_ranks: RankPool) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    @in_group
    def check(rank: int) -> None:
        ones = [full(rank + 1.0, number) for number in range(1, 4)]
        with _coalescing_manager():
            for tensor in ones:
                dist.all_reduce(tensor)
        assert [each.tolist() for each in ones] == [[3], [3] * 2, [3] * 3]
        outputs = [torch.empty(2), torch.empty(4)]
        with _coalescing_manager(async_ops=True) as manager:
            for number, output in enumerate(outputs):
                dist.all_gather_into_tensor(output, full(rank, number + 1))
        manager.wait()
        assert [each.tolist() for each in outputs] == [[0, 1], [0, 0, 1, 1]]
        # One that is there twice, and a part of it, are reduced once, as by Gloo.
        for size in (3, 1_000_000):
            tensor = full(rank + 1.0, size)
            dist.all_reduce_coalesced([tensor, full(1), tensor, tensor[1:]])
            assert tensor.eq(3).all(), tensor
        with _coalescing_manager(device=torch.device("cpu")):
            for number, output in enumerate(outputs):
                dist.reduce_scatter_tensor(output[: number + 1], torch.arange(2.0 * (number + 1)))
        assert [outputs[0][0].item(), outputs[1][1].item()] == [2 * rank, 4 * rank + 2]
        works = [dist.all_reduce(full(rank, 2), async_op=True) for _ in range(50)]
        futures = [work.get_future() for work in works]
        assert all(future.wait()[0].tolist() == [1, 1] for future in reversed(futures))
        assert works[0].get_future().then(lambda done: done.value()[0] * 2).wait().tolist() == [2, 2]

    two_ranks.run(check)


def test_functional_collectives(two_ranks: RankPool) -> None:
    import torch.distributed._functional_collectives as functional

    @in_group
    def check(rank: int) -> None:
        group = dist.group.WORLD
        assert functional.all_reduce(full(rank + 1), "sum", group).tolist() == [3] * 3
        assert functional.all_gather_tensor(full(rank, 1), 0, group).tolist() == [0, 1]
        assert functional.reduce_scatter_tensor(torch.arange(2.0), "sum", 0, group).tolist() == [2 * rank]
        assert functional.all_to_all_single(torch.arange(2.0), [1, 1], [1, 1], group).tolist() == [rank, rank]
        assert functional.broadcast(full(rank), 1, group).tolist() == [1] * 3

    two_ranks.run(check)
