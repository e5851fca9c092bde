"""SyncBatchNorm: what it makes of each rank's batch is what one process makes of all of them together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import spark_estimator.torch as hvd
from tests.torch.rank_pool import RankPool

CASES = [
    ((), [4, 4]),  # BatchNorm1d of [batch, channels]
    ((5,), [2, 3]),
    ((4, 3), [1, 4]),
    ((2, 3, 2), [3, 1]),
    ((6,), [0, 5]),  # an empty batch
    ((3, 3), [4, 0]),
]
PLAIN = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}


def joint_batch(row_shape: tuple[int, ...], sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    shape = (sum(sizes), 3, *row_shape)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 7).to(dtype)


@pytest.mark.parametrize(("row_shape", "sizes"), CASES)
def test_as_one_process_with_the_joint_batch(two_ranks: RankPool, row_shape: tuple[int, ...], sizes: list[int]) -> None:
    def check(rank: int) -> None:
        for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 2e-4)):
            for options in ({}, {"momentum": None}, {"affine": False}, {"track_running_stats": False, "eps": 0.1}):
                torch.manual_seed(3)
                plain = PLAIN[len(row_shape)](3, dtype=dtype, **options)
                sync = hvd.SyncBatchNorm(3, dtype=dtype, **options)
                sync.load_state_dict(plain.state_dict())
                for step in range(2):
                    batch = joint_batch(row_shape, sizes, dtype) + step
                    weights = torch.randn(batch.shape, dtype=dtype)
                    joint_inputs = batch.clone().requires_grad_()
                    (plain(joint_inputs) * weights).sum().backward()
                    local_inputs = batch.split(sizes)[rank].clone().requires_grad_()
                    output = sync(local_inputs)
                    (output * weights.split(sizes)[rank]).sum().backward()
                    assert output.dtype is dtype
                    with torch.no_grad():
                        again = copy.deepcopy(plain).train()
                        expected = again(batch).split(sizes)[rank]
                    torch.testing.assert_close(output, expected, rtol=bound, atol=bound)
                    assert local_inputs.grad is not None
                    assert joint_inputs.grad is not None
                    torch.testing.assert_close(
                        local_inputs.grad, joint_inputs.grad.split(sizes)[rank], rtol=bound, atol=bound
                    )
                for name, parameter in sync.named_parameters():
                    assert parameter.grad is not None
                    total = hvd.allreduce(parameter.grad, op=hvd.Sum)
                    torch.testing.assert_close(total, plain.get_parameter(name).grad, rtol=bound, atol=10 * bound)
                for name, statistic in sync.named_buffers():
                    torch.testing.assert_close(statistic, plain.get_buffer(name), rtol=bound, atol=bound)
                if not plain.track_running_stats:
                    continue  # in eval mode such a layer looks at its own batch
                plain.eval(), sync.eval()
                torch.testing.assert_close(sync(batch.split(sizes)[rank]), plain(batch).split(sizes)[rank])

    two_ranks.run(check)


def test_gradients_by_finite_differences(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        # What all ranks compute alike, of one batch that each takes its rows from: the whole is a function of it.
        batch = joint_batch((2,), [2, 3], torch.float64).requires_grad_()
        weight, bias = torch.rand(3, dtype=torch.float64) + 0.5, torch.rand(3, dtype=torch.float64)

        def joint(batch: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            norm = hvd.SyncBatchNorm(3, affine=False, track_running_stats=False)
            local_inputs = norm(batch.split([2, 3])[rank]) * weight.view(3, 1) + bias.view(3, 1)
            # An average's gradient is that of one rank's share, so the sum over ranks of shares is the whole's.
            return hvd.allgather(local_inputs).tanh() * hvd.size()

        output = joint(batch, weight, bias).sum()
        [gradient] = torch.autograd.grad(output, batch)
        total = hvd.allreduce(gradient, op=hvd.Sum)
        step = 1e-6
        for index in ((0, 0, 0), (1, 2, 1), (4, 1, 0)):
            values = []
            for sign in (1, -1):
                moved = batch.detach().clone()
                moved[index] += sign * step
                values.append(joint(moved, weight, bias).sum().item())
            slope = (values[0] - values[1]) / (2 * step)
            assert total[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-6)

    two_ranks.run(check)


def test_half_precision(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        for dtype in (torch.bfloat16, torch.float16):
            batch = joint_batch((4,), [3, 3], torch.float32)
            expected = torch.nn.BatchNorm1d(3)(batch).split(3)[rank]
            for parameters in (torch.float32, dtype):
                local_inputs = batch.to(dtype).split(3)[rank].requires_grad_()
                output = hvd.SyncBatchNorm(3, dtype=parameters)(local_inputs)
                assert output.dtype is dtype
                torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)
                output.sum().backward()
                assert local_inputs.grad is not None
                assert local_inputs.grad.dtype is dtype

    two_ranks.run(check)


def test_eval_without_running_statistics_is_over_the_joint_batch(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        batch = joint_batch((4,), [2, 3], torch.float64)
        plain = torch.nn.BatchNorm1d(3, track_running_stats=False).double()
        sync = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain).eval())
        assert not sync.training
        torch.testing.assert_close(sync(batch.split([2, 3])[rank]), plain(batch).split([2, 3])[rank])

    two_ranks.run(check)


@pytest.mark.parametrize("options", [{}, {"track_running_stats": False}])
def test_without_a_job_it_is_plain(options: dict[str, Any]) -> None:
    plain, sync = torch.nn.BatchNorm1d(3, **options), hvd.SyncBatchNorm(3, **options)
    batch = joint_batch((), [4], torch.float32)
    assert torch.equal(plain(batch), sync(batch))
    assert torch.equal(plain.eval()(batch), sync.eval()(batch))


def test_large_means_are_not_lost(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        batch = torch.tensor([[1e6], [1e6 + 1]], dtype=torch.float64) + 2 * rank
        output = hvd.SyncBatchNorm(1, eps=0.0, affine=False)(batch)
        expected = (torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64) - 1.5) / 1.25**0.5
        torch.testing.assert_close(output.flatten(), expected.split(2)[rank])

    two_ranks.run(check)


def test_several_layers_and_a_process_set(three_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        hvd.shutdown()
        pair, alone = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
        hvd.init(process_sets=[pair, alone])
        mine = alone if rank == 1 else pair
        torch.manual_seed(2)
        plain = torch.nn.Sequential(
            torch.nn.Linear(4, 3),
            torch.nn.BatchNorm1d(3),
            torch.nn.Tanh(),
            torch.nn.Linear(3, 2),
            torch.nn.BatchNorm1d(2),
        )
        sync = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain), mine)
        batch = torch.randn(6, 4)
        share = batch if rank == 1 else batch.split(3)[rank // 2]
        plain(batch).square().sum().backward()
        sync(share).square().sum().backward()
        for first, second in zip(sync.parameters(), plain.parameters(), strict=True):
            assert first.grad is not None
            torch.testing.assert_close(
                hvd.allreduce(first.grad, op=hvd.Sum, process_set=mine), second.grad, rtol=1e-4, atol=1e-5
            )

    three_ranks.run(check)


def test_on_one_rank_it_is_plain() -> None:
    hvd.init()
    try:
        plain, sync = torch.nn.BatchNorm2d(3), hvd.SyncBatchNorm(3)
        batch = torch.randn(2, 3, 4, 4)
        assert torch.equal(plain(batch), sync(batch))
        assert torch.equal(plain.running_var, sync.running_var)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            sync(torch.randn(1, 3))
    finally:
        hvd.shutdown()


def test_what_is_refused(two_ranks: RankPool) -> None:
    def check(rank: int) -> None:
        norm = hvd.SyncBatchNorm(3)
        for shape in ((3,), (2, 4), (2, 3 + 1, 5)):
            with pytest.raises(ValueError, match=r"SyncBatchNorm\(3\) takes .* not one of shape"):
                norm(torch.ones(shape))
        with pytest.raises(ValueError, match="all ranks together gave 1 values per channel"):
            norm(torch.ones(rank, 3))
        with pytest.raises(ValueError, match="together gave 0 values"):
            norm(torch.ones(0, 3))
        assert norm(torch.ones(rank + 1, 3)).shape == (rank + 1, 3)

    two_ranks.run(check)


def test_a_model_is_converted() -> None:
    shared = torch.nn.BatchNorm1d(4)
    inner = torch.nn.Sequential(torch.nn.BatchNorm3d(2, affine=False, momentum=None), torch.nn.InstanceNorm2d(2))
    model: Any = torch.nn.ModuleDict(
        {"one": torch.nn.BatchNorm2d(3, eps=0.5, track_running_stats=False), "inner": inner, "a": shared, "b": shared}
    )
    model["one"].eval()
    state, parameters = model.state_dict(), list(model.parameters())
    converted: Any = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert [type(each) for each in (converted["one"], converted["inner"][0], converted["a"])] == [hvd.SyncBatchNorm] * 3
    assert type(converted["inner"][1]) is torch.nn.InstanceNorm2d
    assert converted["a"] is converted["b"]
    assert (converted["one"].eps, converted["one"].training) == (0.5, False)
    assert converted["inner"][0].momentum is None
    assert all(a is b for a, b in zip(converted.parameters(), parameters, strict=True))
    assert {name: value.data_ptr() for name, value in converted.state_dict().items()} == {
        name: value.data_ptr() for name, value in state.items()
    }
    assert isinstance(hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(2)), hvd.SyncBatchNorm)
    with pytest.raises(ValueError, match="has no parameters yet"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.LazyBatchNorm1d())


def test_it_can_be_copied_and_saved() -> None:
    import io

    norm = hvd.SyncBatchNorm(3)
    for other in (copy.deepcopy(norm), torch.load(_saved(io.BytesIO(), norm), weights_only=False)):
        assert other.process_set.process_set_id == 0
        assert "SyncBatchNorm(3" in repr(other)


def _saved(buffer: Any, module: torch.nn.Module) -> Any:
    torch.save(module, buffer)
    buffer.seek(0)
    return buffer


def test_a_batch_norm_without_offset(two_ranks: RankPool) -> None:
    if "bias" not in torch.nn.BatchNorm1d.__init__.__code__.co_varnames:
        pytest.skip("this PyTorch has no BatchNorm(bias=False)")

    def check(rank: int) -> None:
        plain = torch.nn.BatchNorm1d(3, bias=False)
        batch = joint_batch((), [2, 3], torch.float32)
        expected = copy.deepcopy(plain)(batch)
        output = hvd.SyncBatchNorm.convert_sync_batchnorm(plain)(batch.split([2, 3])[rank])
        torch.testing.assert_close(output, expected.split([2, 3])[rank], rtol=1e-4, atol=1e-5)
        output.sum().backward()

    two_ranks.run(check)
