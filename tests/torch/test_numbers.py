"""The numbers of every collective: op by type, shape, process set and form, against what one process computes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
SHAPES = [(), (5,), (0, 3), (4, 3), (2, 3, 2)]
REDUCTIONS = [hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
ROWS = [(0, 3), (1,), (4, 3), (7, 2, 2)]


def given(rank: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """What a rank gives: whole numbers that every type holds exactly, also multiplied."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * (rank + 2) + rank) % 4).reshape(tuple(shape)).to(dtype)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements, but in memory every other one, and in another order."""
    backwards = tuple(reversed(range(tensor.dim())))
    spread = torch.zeros(*reversed(tensor.shape), 2, dtype=tensor.dtype)
    spread[..., 0] = tensor.permute(backwards)
    return spread[..., 0].permute(backwards)


def reduced(tensors: Sequence[torch.Tensor], op: Any) -> torch.Tensor:
    stack, dtype = torch.stack(list(tensors)).to(torch.float64), tensors[0].dtype
    result = {
        hvd.Average: lambda: stack.mean(0),
        hvd.Sum: lambda: stack.sum(0),
        hvd.Min: lambda: stack.amin(0),
        hvd.Max: lambda: stack.amax(0),
        hvd.Product: lambda: stack.prod(0),
    }[op]()
    return (result if dtype.is_floating_point or dtype is torch.bool else result.trunc()).to(dtype)


def same(result: Any, expected: torch.Tensor) -> None:
    assert isinstance(result, torch.Tensor)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    if expected.dtype.is_floating_point:
        bound = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(expected.dtype, 1e-6)
        torch.testing.assert_close(result, expected, rtol=bound, atol=0)
    else:
        assert torch.equal(result, expected)


def sets(rank: int) -> Iterator[tuple[Any, list[int]]]:
    """The sets that a rank of three is in, each with its ranks. Joins the job again, so that there can be some."""
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    yield hvd.global_process_set, [0, 1, 2]
    outer, middle = hvd.add_process_set([2, 0]), hvd.add_process_set([1])
    mine = middle if rank == 1 else outer
    yield mine, mine.ranks


def test_reductions(three_ranks: RankPool) -> None:
    forms: list[Callable[..., Any]] = [
        hvd.allreduce,
        lambda tensor, **options: hvd.synchronize(hvd.allreduce_async(tensor, **options)),
        lambda tensor, **options: hvd.allreduce_(tensor, **options),
        lambda tensor, **options: hvd.synchronize(hvd.allreduce_async_(tensor, **options)),
        lambda tensor, **options: hvd.grouped_allreduce([tensor], **options)[0],
        lambda tensor, **options: hvd.synchronize(hvd.grouped_allreduce_async([tensor], **options))[0],
        lambda tensor, **options: hvd.grouped_allreduce_([tensor], **options)[0],
        lambda tensor, **options: hvd.synchronize(hvd.grouped_allreduce_async_([tensor], **options))[0],
    ]

    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            for dtype, shape, op in itertools.product(DTYPES, SHAPES, REDUCTIONS):
                if dtype is torch.bool and op == hvd.Average:
                    continue
                expected = reduced([given(each, shape, dtype) for each in ranks], op)
                for number, form in enumerate(forms):
                    for layout in (torch.clone, strided):
                        tensor = layout(given(rank, shape, dtype))
                        result = form(tensor, op=op, process_set=process_set)
                        same(result, expected)
                        assert (result is tensor) == (number in (2, 3, 6, 7))

    three_ranks.run(check)


def test_adasum(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for dtype in FLOATS:
            orthogonal, parallel = torch.eye(2, dtype=dtype)[rank], torch.tensor([2.0, 4.0], dtype=dtype)
            for form in (hvd.allreduce, hvd.allreduce_):
                same(form(orthogonal.clone(), op=hvd.Adasum), torch.ones(2, dtype=dtype))
                same(form(parallel.clone(), op=hvd.Adasum), parallel)
        assert hvd.Adasum == 2
        with pytest.raises(ValueError, match=rf"on rank {rank}: .*floating point only"):
            hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)

    two_ranks.run(check)


def test_adasum_of_three_ranks_is_refused(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(NotImplementedError, match=rf"on rank {rank}: .*power of two"):
            hvd.allreduce(torch.ones(2), op=hvd.Adasum)

    three_ranks.run(check)


def test_rows_that_are_joined(three_ranks: RankPool) -> None:
    forms: list[Callable[..., Any]] = [
        hvd.allgather,
        lambda tensor, **options: hvd.synchronize(hvd.allgather_async(tensor, **options)),
        lambda tensor, **options: hvd.grouped_allgather([tensor], **options)[0],
        lambda tensor, **options: hvd.synchronize(hvd.grouped_allgather_async([tensor], **options))[0],
    ]

    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            for dtype, (rows, *row_shape) in itertools.product(DTYPES, ROWS):
                given_by = {each: given(each, (rows + each % 2, *row_shape), dtype) for each in ranks}
                expected = torch.cat(list(given_by.values()))
                for form in forms:
                    same(form(strided(given_by[rank]), process_set=process_set), expected)

    three_ranks.run(check)


def test_the_roots_values(three_ranks: RankPool) -> None:
    forms: list[Callable[..., Any]] = [
        hvd.broadcast,
        lambda *args, **options: hvd.synchronize(hvd.broadcast_async(*args, **options)),
        hvd.broadcast_,
        lambda *args, **options: hvd.synchronize(hvd.broadcast_async_(*args, **options)),
    ]

    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            for dtype, shape, root in itertools.product(DTYPES, SHAPES, ranks):
                expected = given(root, shape, dtype)
                for number, form in enumerate(forms):
                    tensor = strided(given(rank, shape, dtype))
                    result = form(tensor, root, process_set=process_set)
                    same(result, expected)
                    assert (result is tensor) == (number >= 2)

    three_ranks.run(check)


def test_rows_that_change_places(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            size, own_rank = len(ranks), ranks.index(rank)
            for dtype, row_shape in itertools.product(DTYPES, [(), (3,), (2, 0)]):
                # The rank at place i sends i + j rows to that at place j; in the even form two rows to each.
                uneven = {
                    each: given(each, (sum(i + j for j in range(size)), *row_shape), dtype)
                    for i, each in enumerate(ranks)
                }
                parts = [uneven[each].split([i + j for j in range(size)])[own_rank] for i, each in enumerate(ranks)]
                splits = [own_rank + j for j in range(size)]
                for given_splits in (splits, torch.tensor(splits, dtype=torch.int32), torch.tensor(splits)):
                    for pair in (
                        hvd.alltoall(strided(uneven[rank]), given_splits, process_set=process_set),
                        hvd.synchronize(hvd.alltoall_async(uneven[rank], given_splits, process_set=process_set)),
                    ):
                        rows, received = pair
                        same(rows, torch.cat(parts))
                        same(received, torch.tensor([i + own_rank for i in range(size)], dtype=torch.int32))
                even = {each: given(each, (2 * size, *row_shape), dtype) for each in ranks}
                expected = torch.cat([even[each].split(2)[own_rank] for each in ranks])
                same(hvd.alltoall(even[rank], process_set=process_set), expected)
                rows, received = hvd.synchronize(hvd.alltoall_async(even[rank], process_set=process_set))
                same(rows, expected)
                assert received.tolist() == [2] * size

    three_ranks.run(check)


def test_rows_that_are_reduced_and_shared(three_ranks: RankPool) -> None:
    forms: list[Callable[..., Any]] = [
        hvd.reducescatter,
        lambda tensor, **options: hvd.synchronize(hvd.reducescatter_async(tensor, **options)),
        lambda tensor, **options: hvd.grouped_reducescatter([tensor], **options)[0],
        lambda tensor, **options: hvd.synchronize(hvd.grouped_reducescatter_async([tensor], **options))[0],
    ]

    def check(rank: int) -> None:
        for process_set, ranks in sets(rank):
            size, own_rank = len(ranks), ranks.index(rank)
            for dtype, shape, op in itertools.product(DTYPES, ROWS, [hvd.Average, hvd.Sum]):
                if dtype is torch.bool and op == hvd.Average:
                    continue
                full = reduced([given(each, shape, dtype) for each in ranks], op)
                shares = [shape[0] // size + (position < shape[0] % size) for position in range(size)]
                for form in forms:
                    result = form(strided(given(rank, shape, dtype)), op=op, process_set=process_set)
                    same(result, full.split(shares)[own_rank])
            same(hvd.reducescatter(torch.full((size,), 4.0), process_set=process_set), torch.full((1,), 4.0))

    three_ranks.run(check)


def test_groups_of_mixed_types(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        members = [given(rank, (4, 3), dtype) for dtype in (torch.float32, torch.int64, torch.float16)]
        everyone = [[given(each, (4, 3), tensor.dtype) for each in range(3)] for tensor in members]
        for compression in (hvd.Compression.none, hvd.Compression.fp16):
            results = hvd.grouped_allreduce(members, op=hvd.Sum, compression=compression)
            for result, tensors in zip(results, everyone, strict=True):
                same(result, reduced(tensors, hvd.Sum))
            results = hvd.grouped_reducescatter(members, op=hvd.Sum, compression=compression)
            for result, tensors in zip(results, everyone, strict=True):
                same(result, reduced(tensors, hvd.Sum).split([2, 1, 1])[rank])
        for result, tensors in zip(hvd.grouped_allgather(members), everyone, strict=True):
            same(result, torch.cat(tensors))
        handle = hvd.grouped_allreduce_async_(members, op=hvd.Max, prescale_factor=2.0)
        assert all(a is b for a, b in zip(hvd.synchronize(handle), members, strict=True))
        same(members[0], reduced(everyone[0], hvd.Max) * 2)

    three_ranks.run(check)


def test_sparse_tensors(three_ranks: RankPool) -> None:
    def compare(rank: int) -> None:
        for process_set, ranks in sets(rank):
            for dtype, dense in itertools.product(
                (torch.float32, torch.float64, torch.bfloat16, torch.int64), ((), (2,))
            ):

                def of(each: int, dtype: torch.dtype = dtype, dense: tuple[int, ...] = dense) -> torch.Tensor:
                    # Rank 1 has no entry; the others have one at a separate index and two at a common one.
                    count = 0 if each == 1 else 3
                    indices = torch.tensor([[each, 3, 3], [0, 1, 1]])[:, :count]
                    values = torch.full((count, *dense), each + 1).to(dtype)
                    return torch.sparse_coo_tensor(indices, values, (4, 2, *dense), check_invariants=True)

                total = torch.stack([of(each).to_dense() for each in ranks]).sum(0)
                for name in (None, "embedding"):
                    summed = hvd.sparse_allreduce_async(of(rank), name, hvd.Sum, process_set=process_set)()
                    assert summed.layout is torch.sparse_coo
                    same(summed.to_dense(), total)
                average = hvd.sparse_allreduce_async(of(rank), "a", hvd.Average, process_set)()
                same(
                    average.to_dense(),
                    total.div(len(ranks), rounding_mode=None if dtype.is_floating_point else "trunc"),
                )

    def check(rank: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch warns about sparse tensors without a setting for invariant checks
            compare(rank)

    three_ranks.run(check)


def test_scales_of_a_reducescatter(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        tensor = torch.tensor([1.0, 2.0])
        options = {"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 6.0}
        assert hvd.reducescatter(tensor, **options).tolist() == [[6.0], [12.0]][rank]
        assert hvd.grouped_reducescatter([tensor], **options)[0].tolist() == [[6.0], [12.0]][rank]
        positional = (None, hvd.Compression.none, hvd.Sum, hvd.global_process_set, 0.5, 6.0)
        assert hvd.reducescatter(tensor, *positional).tolist() == [[6.0], [12.0]][rank]

    two_ranks.run(check)


def test_ranks_that_have_joined_count_as_zeros(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for step in range(2):
            for _ in range(rank):
                hvd.allreduce(torch.ones(2), op=hvd.Sum)
            if rank == 2:
                assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [1.0, 1.0]
                with pytest.raises(hvd.HorovodInternalError, match="join"):
                    hvd.allgather(torch.ones(2))
            assert hvd.join() == 2, step
        assert hvd.allreduce(torch.ones(1, requires_grad=True), op=hvd.Sum).item() == 3

    three_ranks.run(check)
