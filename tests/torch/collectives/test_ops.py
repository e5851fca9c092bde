"""The collectives on tensors: values, types, shapes, names, gradients, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from spark_estimator.errors import DuplicateNameError, MismatchError, NotInitializedError
from tests.torch.rank_pool import RankPool

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def test_before_init_it_says_what_to_call() -> None:
    for question in (hvd.rank, hvd.size, lambda: hvd.allreduce(torch.ones(1))):
        with pytest.raises(NotInitializedError, match=r"use hvd\.init\(\)"):
            question()


def test_job_of_one() -> None:
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == (0, 1, 0, 1)
        tensor = torch.arange(6.0).reshape(2, 3)
        assert torch.equal(hvd.allreduce(tensor), tensor)
        assert torch.equal(hvd.allgather(tensor), tensor)
        assert torch.equal(hvd.broadcast(tensor, 0), tensor)
        assert hvd.broadcast_object({"a": 1}) == {"a": 1}
        hvd.barrier()
    finally:
        hvd.shutdown()


def test_all_types_and_operations(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for dtype in FLOATS + INTEGERS:
            tensor = torch.tensor([rank + 1, 2, 7 - rank]).to(dtype)
            assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [6, 6, 18], dtype
            assert hvd.allreduce(tensor, op=hvd.Min).tolist() == [1, 2, 5], dtype
            assert hvd.allreduce(tensor, op=hvd.Max).tolist() == [3, 2, 7], dtype
            assert hvd.allreduce(tensor - 4 * (tensor == 7), op=hvd.Product).tolist()[:2] == [6, 8], dtype
            average = hvd.allreduce(tensor)
            assert average.dtype is dtype
            assert average.tolist() == [2, 2, 6], dtype
            assert hvd.broadcast(tensor, 2).tolist() == [3, 2, 5], dtype
            assert hvd.allgather(tensor).tolist() == [1, 2, 7, 2, 2, 6, 3, 2, 5], dtype
        bits = torch.tensor([rank == 0, rank < 3, False])
        assert hvd.allreduce(bits, op=hvd.Sum).tolist() == [True, True, False]
        assert hvd.allreduce(bits, op=hvd.Product).tolist() == [False, True, False]
        assert hvd.broadcast(bits, 0).tolist() == [True, True, False]
        assert hvd.allgather(bits).dtype is torch.bool

    three_ranks.run(check)


def test_what_comes_again_without_a_name_is_not_negotiated_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        from tests.steady import check_steady

        def step(number: int) -> None:
            for count in (1, 3):
                tensor = torch.full((count,), float(rank + number))
                handles = [hvd.allreduce_async(tensor, op=hvd.Sum) for _ in range(5)]
                handles.append(hvd.allreduce_async_(tensor.clone(), op=hvd.Sum))
                assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [2 * number + 1] * count
                assert hvd.allreduce(tensor.requires_grad_(), op=hvd.Sum).tolist() == [2 * number + 1] * count
                for handle in reversed(handles):
                    result = hvd.synchronize(handle)
                    assert result is not None
                    assert result.tolist() == [2 * number + 1] * count
                assert hvd.broadcast(torch.full((count,), rank + number), 1).tolist() == [1 + number] * count
                assert hvd.allgather(torch.full((count,), rank)).tolist() == [0] * count + [1] * count
            hvd.barrier()

        check_steady(step, 3, 20)

    two_ranks.run(check)


def test_shapes(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        scalar = hvd.allreduce(torch.tensor(float(rank)))
        assert (scalar.shape, scalar.item()) == ((), 0.5)
        assert hvd.allreduce(torch.empty(0, 3)).shape == (0, 3)
        assert hvd.broadcast(torch.empty(0), 1).shape == (0,)
        assert hvd.allgather(torch.full((rank, 2, 3), rank)).shape == (1, 2, 3)
        assert hvd.allgather(torch.empty(0, 4)).shape == (0, 4)
        assert hvd.allgather(torch.empty(rank + 1, 0)).shape == (3, 0)
        large = torch.arange(3_000_000, dtype=torch.float32) * (rank + 1)
        assert torch.equal(hvd.allreduce(large, op=hvd.Sum), torch.arange(3_000_000, dtype=torch.float32) * 3)

    two_ranks.run(check)


def test_memory_that_is_not_contiguous(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        base = torch.arange(12.0).reshape(3, 4) * (rank + 1)
        expected = torch.arange(12.0).reshape(3, 4) * 1.5
        assert torch.equal(hvd.allreduce(base.t()), expected.t())
        # One rank contiguous, the other not: elements are matched, not memory.
        mixed = base.t() if rank else base.t().contiguous()
        assert torch.equal(hvd.allreduce(mixed), expected.t())
        assert torch.equal(hvd.allgather(base[:, 1:2])[:3, 0], torch.tensor([1.0, 5.0, 9.0]))
        column = base[:, 2]
        assert hvd.allreduce_(column) is column
        assert torch.equal(base[:, 2], expected[:, 2])
        assert torch.equal(base[:, 1], torch.tensor([1.0, 5.0, 9.0]) * (rank + 1))
        assert torch.equal(hvd.broadcast_(base[:, 0], 1), torch.tensor([0.0, 8.0, 16.0]))
        assert torch.equal(hvd.allreduce(torch.ones(1).expand(4)), torch.ones(4))
        # The imaginary part of a conjugate is a view whose values have other signs than what is in memory.
        for numbers in ([1 + 2j, 3 - 4j], [1 + 2j]):
            negated = torch.tensor(numbers).conj().imag
            assert (negated.is_neg(), negated.is_contiguous()) == (True, len(numbers) == 1)
            assert hvd.allreduce(negated).tolist() == [-2.0, 4.0][: len(numbers)]
            assert hvd.allreduce_(negated, op=hvd.Sum) is negated
            assert negated.tolist() == [-4.0, 8.0][: len(numbers)]

    two_ranks.run(check)


def test_in_place_works_on_the_tensor_itself(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        tensor = torch.full((4,), float(rank))
        address = tensor.data_ptr()
        assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
        assert tensor.tolist() == [1.0] * 4
        assert tensor.data_ptr() == address
        parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
        assert hvd.broadcast_(parameter, root_rank=1) is parameter
        assert parameter.tolist() == [1.0, 1.0]

    two_ranks.run(check)


def test_a_name_in_flight_cannot_be_used_again(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.barrier()
        if rank == 0:
            handle = hvd.allreduce_async(torch.ones(2), name="twice")
            with pytest.raises(DuplicateNameError, match="twice"):
                hvd.allreduce_async(torch.ones(2), name="twice")
            # Another kind of operation may use the name at the same time.
            other = hvd.broadcast_async(torch.ones(2), 0, name="twice")
            hvd.barrier()
        else:
            hvd.barrier()
            handle = hvd.allreduce_async(torch.ones(2), name="twice")
            other = hvd.broadcast_async(torch.ones(2), 0, name="twice")
        hvd.synchronize(handle)
        hvd.synchronize(other)

    two_ranks.run(check)


def test_scales(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        tensor = torch.tensor([1.0, 2.0])
        assert hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3).tolist() == [3.0, 6.0]
        assert hvd.allreduce(tensor, None, None, hvd.Compression.none, hvd.Sum, 0.5, 3.0).tolist() == [3.0, 6.0]
        assert hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5).tolist() == [2]

    two_ranks.run(check)


def test_average_is_deprecated_but_works(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        tensor = torch.tensor([float(rank)])
        forms: list[Any] = [
            hvd.allreduce,
            hvd.allreduce_,
            lambda *a, **o: hvd.synchronize(hvd.allreduce_async(*a, **o)),
            lambda *a, **o: hvd.synchronize(hvd.allreduce_async_(*a, **o)),
            lambda tensor, *a, **o: hvd.grouped_allreduce([tensor], *a, **o)[0],
            lambda tensor, *a, **o: hvd.grouped_allreduce_([tensor], *a, **o)[0],
            lambda tensor, *a, **o: hvd.synchronize(hvd.grouped_allreduce_async([tensor], *a, **o))[0],
            lambda tensor, *a, **o: hvd.synchronize(hvd.grouped_allreduce_async_([tensor], *a, **o))[0],
        ]
        for call in forms:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert call(tensor.clone(), average=True).item() == 0.5
                assert call(tensor.clone(), False).item() == 1.0
            assert [warning.category for warning in caught] == [DeprecationWarning] * 2
            assert caught[0].filename.endswith("test_ops.py")
        with pytest.raises(ValueError, match=r"not both"):
            hvd.allreduce(tensor, average=True, op=hvd.Sum)

    two_ranks.run(check)


def test_compression(two_ranks: RankPool) -> None:
    class Halves:
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
            return tensor[: len(tensor) // 2], 2.0

        @staticmethod
        def decompress(tensor: torch.Tensor, ctx: float) -> torch.Tensor:
            return tensor * ctx

    def check(rank: int) -> None:
        tensor = torch.tensor([1.0 + rank, 3.0])
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            result = hvd.allreduce(tensor, compression=compression)
            assert (result.dtype, result.tolist()) == (torch.float32, [1.5, 3.0])
            assert hvd.allreduce(torch.tensor([70000]), compression=compression).tolist() == [70000]
        assert hvd.allreduce(tensor, compression=Halves).tolist() == [3.0]

    two_ranks.run(check)


def test_gradients(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        weights = torch.tensor([1.0, 10.0]) * (rank + 1)

        def gradient(function: Any, shape: tuple[int, ...]) -> list[Any]:
            leaf = torch.ones(shape, requires_grad=True)
            result = function(leaf)
            (result * weights[: result.shape[-1]]).sum().backward()
            assert leaf.grad is not None
            return leaf.grad.tolist()

        assert gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), (2,)) == [3.0, 30.0]
        assert gradient(lambda t: hvd.allreduce(t), (2,)) == [1.5, 15.0]
        assert gradient(lambda t: hvd.allreduce(t, prescale_factor=2.0), (2,)) == [3.0, 30.0]
        assert gradient(lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16), (2,)) == [1.5, 15.0]
        assert gradient(lambda t: hvd.broadcast(t, 1), (2,)) == ([0.0, 0.0] if rank == 0 else [1.5, 15.0])
        assert gradient(lambda t: hvd.allgather(t), (rank + 1, 2)) == [[1.5, 15.0]] * (rank + 1)
        # An expanded gradient, which Horovod refuses.
        leaf = torch.ones(3, requires_grad=True)
        hvd.allreduce(leaf).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [1.0] * 3
        # The ranks may go backward in different orders.
        first, second = (torch.full((2,), 1.0, requires_grad=True) for _ in range(2))
        outputs = [hvd.allreduce(first).sum(), hvd.allreduce(second, op=hvd.Sum).sum()]
        for output in outputs if rank else outputs[::-1]:
            output.backward() if rank == 0 else None
        if rank:
            (outputs[0] + outputs[1]).backward()
        with pytest.raises(NotImplementedError, match="Max is not differentiable"):
            hvd.allreduce(torch.ones(1, requires_grad=True), op=hvd.Max).backward()

    two_ranks.run(check)


def test_gradients_by_finite_differences(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        # All ranks compute the same function of the same input, so that the whole is a function of it.
        weight = torch.tensor([[0.3, -1.2], [2.0, 0.7]], dtype=torch.float64)
        leaf = torch.tensor([[0.5, 1.5], [-0.5, 2.5]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda t: hvd.allreduce(t * weight).tanh(), (leaf,))
        assert torch.autograd.gradcheck(lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5).tanh(), (leaf,))

    two_ranks.run(check)


def test_disagreement_is_an_error_on_all_ranks(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(MismatchError, match="bad shape"):
            hvd.allreduce(torch.ones(2 + rank), name="bad shape")
        with pytest.raises(MismatchError, match="bad type"):
            hvd.allreduce(torch.ones(2, dtype=[torch.float32, torch.int32][rank]), name="bad type")
        with pytest.raises(hvd.HorovodInternalError, match="bad op"):
            hvd.allreduce(torch.ones(2), op=[hvd.Sum, hvd.Max][rank], name="bad op")
        with pytest.raises(MismatchError, match="bad root"):
            hvd.broadcast(torch.ones(2), rank, name="bad root")
        with pytest.raises(MismatchError, match="bad columns"):
            hvd.allgather(torch.ones(2, 2 + rank), name="bad columns")
        assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]

    two_ranks.run(check)


def test_what_is_refused_at_once(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        with pytest.raises(IndexError, match="0-dimensional"):
            hvd.allgather(torch.tensor(1.0))
        with pytest.raises(ValueError, match=r"torch\.complex64"):
            hvd.allreduce(torch.ones(1, dtype=torch.complex64))
        with pytest.raises(ValueError, match="sparse"):
            hvd.allreduce(torch.eye(2).to_sparse())
        with pytest.raises(ValueError, match=r"root_rank=2 must be one of the ranks 0 to 1"):
            hvd.broadcast(torch.ones(1), 2)
        with pytest.raises(ValueError, match="op=9"):
            hvd.allreduce(torch.ones(1), op=9)
        with pytest.raises(ValueError, match="list"):
            hvd.allreduce_async([1.0])  # type: ignore[arg-type]
        # Nothing was sent, so nothing is waiting for the other rank.
        assert hvd.allreduce(torch.ones(1)).item() == 1.0

    two_ranks.run(check)


def test_objects(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        assert hvd.broadcast_object({"rank": rank, "f": (lambda x: x + rank) if rank == 1 else None}, 1)["f"](1) == 2
        assert hvd.allgather_object(["x"] * rank) == [[], ["x"], ["x", "x"]]

    three_ranks.run(check)


def test_an_allgathered_tensor_owns_its_memory(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        results = [hvd.allgather(torch.full((1000,), float(number + rank))) for number in range(50)]
        hvd.shutdown()
        for number, result in enumerate(results):
            assert result[0] == number
            assert result[-1] == number + 1
            result.mul_(2)

    two_ranks.run(check)
