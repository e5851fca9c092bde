"""Parameters that are exchanged together: the outer step, results that arrive late, and requests that are dropped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from spark_estimator.collectives import context
from spark_estimator.collectives.compression.int8 import count_wire_bytes
from spark_estimator.extensions.local_steps.fragment import Fragment, FragmentState, OuterStep


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    context.init()
    yield
    context.shutdown()


def outer(lr: float = 1.0, momentum: float = 0.0, mixing: float = 0.0, *, as_int8: bool = False) -> OuterStep:
    return OuterStep(lr, momentum, mixing, as_int8, None)


def fragment_of(*params: torch.Tensor, step: OuterStep | None = None) -> Fragment:
    return Fragment("test", params, step or outer())


def moved(param: torch.Tensor, by: float) -> None:
    with torch.no_grad():
        param.add_(by)


@pytest.mark.parametrize(("lr", "expected"), [(1.0, 4.0), (0.5, 2.0), (0.0, 0.0)])
def test_the_anchors_step_towards_the_parameters(lr: float, expected: float) -> None:
    param = nn.Parameter(torch.zeros(3))
    fragment = fragment_of(param, step=outer(lr))
    moved(param, 4)
    fragment.send()
    assert fragment.state is FragmentState.IN_FLIGHT and param.tolist() == [4.0] * 3
    fragment.take(late=False)
    assert fragment.state is FragmentState.AT_REST
    assert param.tolist() == fragment.anchors[0].tolist() == [expected] * 3
    assert fragment.version == 1 and fragment.momenta == []


def test_momentum_is_nesterov_s() -> None:
    param, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    fragment = fragment_of(param, step=outer(0.5, 0.9))
    reference = torch.optim.SGD([other], lr=0.5, momentum=0.9, nesterov=True)
    for by in (1.0, -2.0, 0.5):
        other.grad = torch.full((2,), -by)
        moved(param, by)
        fragment.send()
        fragment.take(late=False)
        reference.step()
        assert torch.allclose(param, other)
    assert fragment.version == 3


@pytest.mark.parametrize(("mixing", "expected"), [(0.0, 4.0), (0.25, 5.5), (1.0, 10.0)])
def test_a_late_result_keeps_a_share_of_what_was_done_since(mixing: float, expected: float) -> None:
    param = nn.Parameter(torch.zeros(1))
    fragment = fragment_of(param, step=outer(mixing=mixing))
    moved(param, 4)
    fragment.send()
    moved(param, 6)
    fragment.take(late=True)
    assert fragment.anchors[0].item() == 4.0 and param.item() == expected


def test_what_was_dropped_is_sent_next_time() -> None:
    param = nn.Parameter(torch.zeros(1))
    fragment = fragment_of(param)
    fragment.drop()
    moved(param, 3)
    fragment.send()
    fragment.drop()
    assert (fragment.state, fragment.version, fragment.anchors[0].item()) == (FragmentState.AT_REST, 0, 0.0)
    moved(param, 1)
    fragment.send()
    fragment.take(late=False)
    assert (param.item(), fragment.anchors[0].item(), fragment.version) == (4.0, 4.0, 1)


def test_a_result_needs_a_request() -> None:
    with pytest.raises(AssertionError):
        fragment_of(torch.zeros(1)).take(late=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_small_steps_add_up_in_types_of_16_bits(dtype: torch.dtype) -> None:
    param = nn.Parameter(torch.full((2, 3), 256.0, dtype=dtype).T)
    fragment = fragment_of(param, step=outer(0.01))
    assert fragment.anchors[0].dtype is (dtype if dtype is torch.float64 else torch.float32)
    assert fragment.anchors[0].is_contiguous() and fragment.anchors[0].data_ptr() != param.data_ptr()
    for _ in range(3):
        moved(param, 2)
        fragment.send()
        fragment.take(late=False)
    assert param.dtype is dtype
    assert 256.02 < fragment.anchors[0].min() < 256.1, "of 256, bfloat16 has no next number below 258"


def test_parameters_of_any_shape_and_none() -> None:
    params = [nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(0, 4)), nn.Parameter(torch.zeros(2, 2))]
    fragment = fragment_of(*params)
    for param in params:
        moved(param, 1)
    fragment.send()
    fragment.take(late=False)
    assert [param.tolist() for param in params] == [1.0, [], [[1.0, 1.0]] * 2]
    empty = Fragment("empty", [], outer())
    empty.send()
    empty.take(late=False)
    assert empty.version == 1


def test_bytes_that_travel_between_hosts() -> None:
    params = [nn.Parameter(torch.zeros(4096)), nn.Parameter(torch.zeros(10)), nn.Parameter(torch.zeros(3).double())]
    fragment = fragment_of(*params)
    fragment.send()
    fragment.take(late=False)
    number_of_ranks = 4
    assert fragment.bytes_given == 4 * 4096 + 4 * 10 + 8 * 3 + number_of_ranks
    rounded = Fragment("rounded", params, outer(as_int8=True))
    moved(params[0], 0.5)
    rounded.send()
    rounded.take(late=False)
    assert rounded.bytes_given == count_wire_bytes(4096) + 4 * 10 + 8 * 3 + number_of_ranks
    assert torch.allclose(params[0], torch.full((4096,), 0.5), atol=1e-2)
